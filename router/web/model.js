/* SPDX-License-Identifier: Apache-2.0 */
/* What the page says, worked out of what the API gives. Nothing here touches the document. */
import { count, percent, points, seconds, share, times } from "./format.js";

export const PARTS = [
  { key: "won", name: "Reused", text: "was still cached: no work" },
  { key: "placement", name: "Held elsewhere", text: "another replica had it: passed over for load, or by a policy that does not look" },
  { key: "staleness", name: "Expected, but gone", text: "thought to be cached, the engine had dropped it" },
  { key: "workload", name: "New", text: "no replica had it: new text, or evicted everywhere" },
];

export const RULES = {
  round_robin: "round robin",
  least_tokens: "least load",
  prefix_hash: "prefix hash",
};

export const REASONS = {
  hit: "it holds a useful part of the prompt",
  load: "nothing useful cached anywhere: least work",
  spread: "another one holds more: waiting there costs more, or the policy does not look",
  affinity: "session, hash, or owner of the previous response",
  queue: "it had waited in the router's queue",
  retry: "an earlier try failed",
  only: "the only candidate",
};

const WINDOWS = { "1m": ["the last minute", 60], "10m": ["the last 10 minutes", 600], "1h": ["the last hour", 3600], life: ["the time since start", Infinity] };

/* A router that is younger than the window has no more to tell than its life. */
export function spanText(window, sums) {
  const [name, length] = WINDOWS[window];
  return sums && length < Infinity && sums.covered_s < length * 0.9 ? `the last ${seconds(Math.round(sums.covered_s))}` : name;
}

/* Points of reuse and factor of work from which on a difference counts. docs/dashboard.md names them. */
const CLEAR_POINTS = 0.03;
const CLEAR_BALANCE = 1.2;
const SOME_REUSE = 0.01;

export const all = (ledger) => (ledger.accounts && ledger.accounts.all[0]) || null;
export const sumsOf = (account, window) => (account ? account.windows[window] : null);
export const reuse = (sums) => (sums ? share(sums.won_tokens, sums.prompt_tokens) : null);

/* Prediction and observation over the same requests: those whose engine told. */
export function truth(sums) {
  const whole = sums.prompt_tokens - sums.unobserved_prompt_tokens;
  return {
    predicted: share(sums.predicted_tokens - sums.won_unobserved_tokens, whole),
    observed: share(sums.observed_tokens, whole),
  };
}

/* The fact and the simulated rules, best first behind the fact: {key, name, reuse, avoided_s, busiest}. */
export function rules(ledger, window, policy) {
  const busiest = (name) => (ledger.balance && ledger.balance[name] ? ledger.balance[name].computed_tokens.max_mean : null);
  const fact = sumsOf(all(ledger), window);
  const row = (key, name, sums, spread) => ({
    key, name, reuse: reuse(sums), avoided_s: sums && sums.prompt_tokens ? sums.avoided_ns / 1e9 : null, busiest: busiest(spread),
  });
  const others = (ledger.accounts.virtual || []).map((a) => row(a.name, RULES[a.name] || a.name, a.windows[window], a.name));
  others.sort((a, b) => (b.reuse ?? -1) - (a.reuse ?? -1));
  return [row("fact", `${policy} (in force)`, fact, "real"), ...shadowRule(ledger, window), ...others];
}

/* What kv would have done, where another policy is in force and --shadow is on. */
function shadowRule(ledger, window) {
  const all = ledger.shadow && ledger.shadow.accounts && ledger.shadow.accounts.all && ledger.shadow.accounts.all[0];
  const sums = all ? all.windows[window] : null;
  if (!sums) return [];
  const balance = ledger.shadow.kv.balance;
  return [{ key: "shadow", name: "kv (shadow)", reuse: sums.kv_hit_rate, avoided_s: sums.prompt_tokens ? sums.kv_avoided_s : null,
    busiest: balance ? balance.computed_tokens.max_mean : null }];
}

/*
 * The fact as far as simulated replicas could have had it: answers that engines keep, and what was cached before the router
 * began, are in the fact alone.
 */
function alike(fact, ledger, window) {
  const curve = ledger.curve && (ledger.curve[window] || ledger.curve["1h"] || ledger.curve.life);
  const ideal = curve && Number.isFinite(curve.ideal) ? curve.ideal : null;
  return ideal !== null && fact.reuse > ideal ? { ...fact, reuse: ideal } : fact;
}

/* Policies that look at what is cached: whether that is worth it is the question. */
const AWARE = ["kv", "longest_prefix"];

/* {word, kind, text, tiles}: the answer at the top. */
export function verdict(ledger, window, policy) {
  const sums = sumsOf(all(ledger), window);
  const spent = sums ? sums.prompt_tokens : 0;
  if (!sums || !spent)
    return { word: "Nothing to tell yet.", kind: "none", text: `No prompt was computed in ${spanText(window)}.`, tiles: [] };

  const list = rules(ledger, window, policy);
  const shadow = list.find((rule) => rule.key === "shadow");
  const [fact, ...others] = list.filter((rule) => rule !== shadow);
  const fair = alike(fact, ledger, window);
  const best = others[0], turns = others.find((r) => r.key === "round_robin");
  const avoided = sums.avoided_ns / 1e9;
  let text = `Of ${count(spent)} prompt tokens in ${spanText(window, sums)}, ${percent(fact.reuse)} came out of caches and were not computed again`;
  text += avoided > 0 ? `, which saved ${seconds(avoided)} of replica time. ` : ". ";
  const tiles = [
    { name: "Prompt tokens reused", figure: percent(fact.reuse), sub: `${count(sums.won_tokens)} of ${count(spent)}`, id: "reused", value: fact.reuse },
    { name: "Replica time avoided", figure: seconds(avoided), sub: avoidedNote(sums, avoided), id: "avoided", value: avoided },
  ];
  if (best) tiles.push(...comparisons(fair, best, turns));
  if (shadow) tiles.push({ name: "With policy kv", id: "shadow", figure: percent(shadow.reuse), value: shadow.reuse,
    sub: `would be reused, as --shadow measures it; ${points(shadow.reuse - fair.reuse)}` });
  if (!AWARE.includes(policy)) return { ...unaware(fair, best, shadow, text, policy), tiles };
  return { ...judge(fair, best, turns, text), tiles };
}

/* kv is held against the best of what is simpler, be it in force or not. */
function unaware(fact, best, shadow, text, policy) {
  const runs = `${text}This router runs ${policy}, which does not look at what is cached. `;
  if (!shadow || shadow.reuse === null) return { word: "Not known from here.", kind: "none", text: `${runs}With --shadow the policy kv is measured beside it.` };
  const other = best && best.reuse > fact.reuse ? best : null;
  const gain = shadow.reuse - (other ? other.reuse : fact.reuse);
  const kv = `The policy kv, measured beside it, would have reused ${percent(shadow.reuse)}` +
    (other ? `, ${other.name} ${percent(other.reuse)}.` : ".");
  if (gain >= CLEAR_POINTS) return { word: "It would be.", kind: "yes", text: runs + kv };
  return { word: "Hardly.", kind: "barely", text: runs + kv };
}

function avoidedNote(sums, avoided) {
  if (sums.untimed_tokens) return `speed not known yet for ${count(sums.untimed_tokens)} reused tokens`;
  return sums.covered_s > 0 ? `as if ${(avoided / sums.covered_s).toFixed(2)} more replicas had been computing` : "";
}

function comparisons(fact, best, turns) {
  const tile = (name, rule, id) => ({
    name, id, figure: points(fact.reuse - rule.reuse), value: fact.reuse - rule.reuse,
    sub: `${percent(rule.reuse)} reused; its busiest replica ${times(rule.busiest)} the mean, here ${times(fact.busiest)}`,
  });
  const list = [];
  if (turns) list.push(tile("More than round robin", turns, "over-turns"));
  list.push(tile(`More than the best simpler rule: ${best.name}`, best, "over-best"));
  return list;
}

function judge(fact, best, turns, text) {
  if (!best) return { word: "", kind: "none", text: `${text}The comparison with simpler rules is switched off (--counterfactual).` };
  const gain = fact.reuse - best.reuse;
  if (Math.max(fact.reuse, best.reuse) < SOME_REUSE)
    return { word: "Nothing to reuse.", kind: "barely", text: `${text}Nor would a simpler rule have found more: these prompts do not begin alike, or nothing of them stays cached.` };
  const even = best.busiest && fact.busiest && best.busiest > fact.busiest * CLEAR_BALANCE;
  const less = best === turns || !turns ? "" : `Round robin would have reused ${percent(turns.reuse)}`;
  const next = `the best simpler rule (${best.name}) ${percent(best.reuse)}`;
  const both = less ? `${less}, ${next}.` : `Of the same, ${next}.`;
  if (gain >= CLEAR_POINTS) return { word: "Yes.", kind: "yes", text: text + both };
  if (gain > -CLEAR_POINTS && even)
    return { word: "Yes, for the balance.", kind: "yes", text: `${text}${both} But its busiest replica would have computed ${times(best.busiest)} the mean, against ${times(fact.busiest)} here.` };
  if (gain > -CLEAR_POINTS) return { word: "Barely.", kind: "barely", text: `${text}${both} A simpler rule would do about as well.` };
  return { word: "Not now.", kind: "no", text: `${text}${both} It would have reused more.` };
}

/* Rows of one kind with traffic in the window, most tokens first; and how many have none. */
export function accounts(ledger, kind, window) {
  const list = (ledger.accounts && ledger.accounts[kind]) || [];
  const busy = list.filter((a) => a.windows[window].requests > 0);
  busy.sort((a, b) => b.windows[window].prompt_tokens - a.windows[window].prompt_tokens);
  return { busy, idle: list.length - busy.length };
}

/* Sum of the capacities that are known, and of how many replicas it is. */
export function capacity(replicas) {
  const told = replicas.filter((r) => r.capacity_tokens !== null);
  return { tokens: told.reduce((sum, r) => sum + r.capacity_tokens, 0), known: told.length, all: replicas.length };
}

/* The hit rate at a size: on the line between the points, as the chart draws it. Beyond the last one nothing is gained. */
export function curveAt(curve, tokens) {
  const at = curve.points.findIndex(([size]) => size >= tokens);
  if (at < 0) return curve.ideal;
  const [size, rate] = curve.points[at];
  if (at === 0) return size === tokens ? rate : null;
  const [before, less] = curve.points[at - 1];
  return less + (rate - less) * Math.log(tokens / before) / Math.log(size / before);
}

/* ---- history: what the API does not keep is gathered while the page is open ---- */

const KEPT = ["requests", "prompt_tokens", "predicted_tokens", "observed_tokens", "unobserved_prompt_tokens", "won_tokens",
  "won_unobserved_tokens", "placement_tokens", "staleness_tokens", "workload_tokens"];
const STEPS_MAX = 720;

function minus(a, b) {
  return Object.fromEntries(KEPT.map((key) => [key, Math.max(0, a[key] - (b[key] ?? 0))]));
}

export class History {
  constructor(step_s) {
    this.steps = []; /* {from, to, sums}, in seconds of the page's clock */
    this.step_s = step_s;
    this.last = null;
  }

  /* The windows tell of the time before the page was opened: coarse steps of their differences. */
  #begin(windows, now) {
    const names = ["1h", "10m", "1m"];
    names.forEach((name, i) => {
      const inner = windows[names[i + 1]];
      const from = now - windows[name].covered_s, to = now - (inner ? inner.covered_s : 0);
      if (to - from > 1) this.steps.push({ from, to, sums: inner ? minus(windows[name], inner) : minus(windows[name], {}) });
    });
  }

  add(account, now) {
    if (!account) return;
    const life = account.windows.life;
    if (this.last && life.requests < this.last.sums.requests) { /* the router was started again */
      this.steps = [];
      this.last = null;
    }
    if (!this.last) this.#begin(account.windows, now);
    else if (now - this.last.at < this.step_s) return;
    else this.steps.push({ from: this.last.at, to: now, sums: minus(life, this.last.sums) });
    this.last = { at: now, sums: life };
    if (this.steps.length > STEPS_MAX) this.#halve();
  }

  /* Twice as coarse, so that any time fits. */
  #halve() {
    const merged = [];
    for (let i = 0; i < this.steps.length; i += 2) {
      const [a, b] = [this.steps[i], this.steps[i + 1]];
      merged.push(b ? { from: a.from, to: b.to, sums: Object.fromEntries(KEPT.map((k) => [k, a.sums[k] + b.sums[k]])) } : a);
    }
    this.steps = merged;
    this.step_s *= 2;
  }
}

const SUBJECTS_MAX = 40;

/* A history for the whole and for each of the busiest workloads and families. */
export class Histories {
  #step_s;
  #kept = new Map(); /* key -> {key, title, account, history} */

  constructor(step_s) {
    this.#step_s = step_s;
  }

  add(ledger, now) {
    if (!ledger.accounts) return;
    const busiest = (kind) => accounts(ledger, kind, "1h").busy.slice(0, SUBJECTS_MAX / 2);
    const subjects = [["all", ledger.accounts.all[0]], ...["workload", "family"].flatMap((kind) => busiest(kind).map((a) => [kind, a]))];
    const next = new Map();
    for (const [kind, account] of subjects.filter(([, a]) => a)) {
      const key = `${kind} ${account.name}`;
      const history = this.#kept.get(key)?.history ?? new History(this.#step_s);
      history.add(account, now);
      next.set(key, { key, title: kind === "all" ? "everything" : kind === "family" ? account.label ?? account.name : `${kind} ${account.name}`, account, history });
    }
    this.#kept = next;
  }

  list() {
    return [...this.#kept.values()];
  }

  get(key) {
    return this.#kept.get(key);
  }
}
