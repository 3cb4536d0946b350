/* SPDX-License-Identifier: Apache-2.0 */
/* The sections that are text, bars and tables. */
import { $, bar, el, fill, say, table, tag } from "./dom.js";
import { count, median, percent, roughSeconds, seconds, share, short } from "./format.js";
import { PARTS, REASONS, accounts, all, spanText, sumsOf, verdict } from "./model.js";

const ROWS = 15; /* of accounts, before one asks for more */
const LAST = 12; /* requests */

export function showVerdict(ledger, window, policy) {
  const told = verdict(ledger, window, policy);
  $("verdict").closest("section").className = `card wide verdict ${told.kind}`;
  fill($("verdict"), ...(told.word ? [el("strong", null, told.word)] : []), told.text);
  fill($("tiles"), ...told.tiles.map((t) => el("div", { "data-tile": t.id, "data-value": t.value },
    el("dt", null, t.name), el("dd", { class: "figure" }, t.figure), el("dd", { class: "sub" }, t.sub))));
}

export function showAlarms(alarms) {
  const list = alarms.alarms || [];
  if (!list.length) {
    fill($("alarms"), el("p", { class: "quiet" }, "✓ None: matching, reports and load figures work."));
    return;
  }
  fill($("alarms"), ...list.map((a) => el("div", { class: "alarm" },
    el("strong", null, a.alarm.replaceAll("_", " ")), ` · ${a.replica ?? "whole fleet"} · for ${duration(a.for_s)}`, el("p", null, a.text))));
}

/* Coarse, so that a region that is read out aloud does not change every second. */
function duration(s) {
  return s < 60 ? "less than a minute" : s < 3600 ? `${Math.floor(s / 60)} min` : `${Math.floor(s / 3600)} h`;
}

/* ---- fleet ---- */

const STATES = { ready: "good", trial: "warn", starting: "warn", draining: "warn", down: "bad" };

function meter(x) {
  if (x === null) return { text: "unknown" };
  return { text: el("span", null, bar([{ key: "series", share: Math.min(1, x) }], percent(x), "bar meter"), percent(x)), value: x };
}

/* What a replica said of itself before it fell silent is no figure of now. */
const silent = (replica) => replica.state === "down" || replica.load_known === false;

function load(replica) {
  if (silent(replica) || (replica.running === null && replica.waiting === null)) return { text: "unknown" };
  return { text: `${count(replica.running)} running, ${count(replica.waiting)} waiting`, value: replica.running };
}

function capacityOf(replica) {
  if (replica.capacity_tokens === null) return { text: "unknown" };
  return { text: `${count(replica.capacity_tokens)}${replica.capacity_learned ? " (learned)" : ""}`, value: replica.capacity_tokens };
}

function trust(replica) {
  if (replica.trust === null) return { text: "unknown", title: "no prediction was checked yet" };
  return { text: percent(replica.trust), value: replica.trust, title: `lost its cache ${replica.resets} times without a sign` };
}

/* How it is known what the replica holds: from what was sent there, or from the engine's own events. */
function residency(replica) {
  const events = replica.events;
  const text = !replica.residency ? "unknown" : replica.residency === "events" ? "its events" : "what was sent there";
  if (!events) return { text };
  const good = replica.residency === "events" && events.trusted !== false;
  return { text: el("span", null, tag(good ? "good" : "warn", `${text}${good ? "" : `; events: ${events.state}`}`),
    !good && events.why ? el("span", { class: "sub" }, ` ${events.why}`) : ""), title: `stream: ${events.state}, check: ${events.canary ?? "none"}` };
}

const FLEET = [
  { name: "Replica", key: "name", cell: (r) => r.name },
  { name: "State", key: "state", cell: (r) => el("span", null, tag(STATES[r.state] || "warn", r.state),
    r.why && r.state !== "ready" ? el("span", { class: "sub" }, ` ${r.why}`) : "") },
  { name: "Engine", cell: (r) => `${r.engine} ${r.engine_version}`.trim() },
  { name: "In flight", key: "in_flight", number: true, title: "requests that this router has there", cell: (r) => ({ text: count(r.in_flight), value: r.in_flight }) },
  { name: "Load, as it says", cell: load },
  { name: "KV cache in use", key: "kv_usage", cell: (r) => meter(silent(r) ? null : r.kv_usage) },
  { name: "Capacity, tokens", key: "capacity", number: true, cell: capacityOf },
  { name: "Prefill, tokens/s", number: true, cell: (r) => count(r.prefill_tokens_per_second) },
  { name: "Trust", key: "trust", number: true, title: "how much of what is predicted to be cached there comes true", cell: trust },
  { name: "Cache known from", key: "residency", cell: residency },
  { name: "Alarms", full: true, cell: (r) => (r.alarms.length ? tag("bad", r.alarms.join(", ").replaceAll("_", " ")) : "none") },
];

export function showFleet(replicas) {
  const ready = replicas.filter((r) => r.state === "ready" || r.state === "trial").length;
  say($("fleet-note"), `Ready: ${ready} of ${replicas.length} replicas.`);
  fill($("fleet"), replicas.length ? table("Replicas", FLEET, replicas) : el("p", { class: "empty" }, "No replicas yet."));
}

/* ---- accounts ---- */

function parts(sums) {
  return PARTS.map((p) => ({ key: p.key, name: p.name, share: share(sums[`${p.key}_tokens`], sums.prompt_tokens) }));
}

function partsLabel(list) {
  return list.map((p) => `${p.name} ${percent(p.share)}`).join(", ");
}

function partsBar(sums, className) {
  const list = parts(sums);
  if (!sums.prompt_tokens) return el("div", { class: className || "bar", role: "img", "aria-label": "no prompt tokens" });
  return bar(list, partsLabel(list), className);
}

/* Histograms know powers of two only: the middle of the bucket, and its bounds for those who point at it. */
function middle(bounds, show, scale) {
  if (!bounds) return null;
  if (bounds[1] === 0) return { text: `< ${show(scale)}` };
  return { text: `≈ ${show(Math.sqrt(bounds[0] * bounds[1]) * scale)}`, title: `${show(bounds[0] * scale)} to ${show(bounds[1] * scale)}` };
}

function shared(account) {
  if (account.family_tokens) return { text: count(account.family_tokens), value: account.family_tokens };
  return middle(median(account.shared_tokens, true), short, 1) || "none";
}

function again(account) {
  return middle(median(account.reuse_ms, false), roughSeconds, 0.001) || (account.reuse_unknown ? "unknown" : "never");
}

function columns(kind, window) {
  const of = (a) => a.windows[window];
  const part = (key, name) => ({ name, key, number: true, cell: (a) => ({ text: percent(share(of(a)[`${key}_tokens`], of(a).prompt_tokens)), value: of(a)[`${key}_tokens`] }) });
  const list = [
    { name: kind[0].toUpperCase() + kind.slice(1), key: "name", cell: (a) => ({ text: a.label ?? a.name, title: a.label ? a.name : null }) },
    { name: "Requests", key: "requests", number: true, cell: (a) => ({ text: count(of(a).requests), value: of(a).requests }) },
    { name: "Prompt tokens", key: "prompt", number: true, cell: (a) => ({ text: count(of(a).prompt_tokens), value: of(a).prompt_tokens }) },
    { name: "What became of them", full: true, cell: (a) => partsBar(of(a)) },
    part("won", "Reused"), part("placement", "Elsewhere"), part("staleness", "Gone"), part("workload", "New"),
    { name: "Time avoided", key: "avoided", number: true, cell: (a) => ({ text: seconds(of(a).avoided_ns / 1e9), value: of(a).avoided_ns / 1e9 }) },
    { name: kind === "family" ? "Shared beginning" : "Typical shared beginning", number: true, title: "tokens that somebody still held; the median, since start", cell: shared },
    { name: "Used again after", number: true, title: "the median, since start", cell: again },
  ];
  return kind === "replica" ? list.slice(0, -2) : list;
}

const KIND_NOTES = {
  workload: "As the configuration or the header x-kvroute-workload names them.",
  family: "Found by kvroute itself: prompts that share a beginning. The configuration can name them (family).",
  model: "As clients ask for them.",
  replica: "Where the requests were sent.",
};

export function showAccount(ledger, window) {
  const sums = sumsOf(all(ledger), window);
  if (!sums || !sums.prompt_tokens) {
    fill($("account-bar"));
    fill($("account-legend"), el("dd", null, `No prompt in ${spanText(window)}.`));
    return;
  }
  const list = parts(sums);
  $("account-bar").setAttribute("role", "img");
  $("account-bar").setAttribute("aria-label", partsLabel(list));
  fill($("account-bar"), ...bar(list, "").childNodes);
  fill($("account-legend"), ...PARTS.map((p, i) => el("div", { "data-part": p.key, "data-value": sums[`${p.key}_tokens`] },
    el("dt", null, el("i", { class: p.key }), p.name),
    el("dd", { class: "figure" }, `${percent(list[i].share)} · ${count(sums[`${p.key}_tokens`])} tokens`),
    el("dd", null, p.text))));
}

export function showAccounts(ledger, kind, window, everything) {
  const { busy, idle } = accounts(ledger, kind, window);
  const rows = everything ? busy : busy.slice(0, ROWS);
  const unseen = kind === "family" && ledger.ledger && ledger.ledger.families_unseen || [];
  say($("kind-note"), KIND_NOTES[kind] + (unseen.length ? ` No prompt belongs to what is named ${unseen.join(", ")}: is the name right, and the seed the same?` : "") + (idle ? ` ${idle} without traffic in ${spanText(window)} are left out.` : ""));
  fill($("accounts"), rows.length ? table(`Account by ${kind}`, columns(kind, window), rows) : el("p", { class: "empty" }, `No traffic in ${spanText(window)}.`));
  $("more").hidden = busy.length <= ROWS;
  say($("more"), everything ? `Show the busiest ${ROWS}` : `Show all ${busy.length}`);
}

/* ---- the rest ---- */

export function showReasons(ledger) {
  const rows = (ledger.reasons || []).filter((r) => r.requests > 0);
  const total = rows.reduce((sum, r) => sum + r.requests, 0);
  rows.sort((a, b) => b.requests - a.requests);
  fill($("reasons"), rows.length ? table("Decisions by reason", [
    { name: "Reason", key: "name", cell: (r) => el("span", null, r.reason, el("span", { class: "sub" }, ` ${REASONS[r.reason] || ""}`)) },
    { name: "Requests", key: "requests", number: true, cell: (r) => ({ text: `${count(r.requests)} (${percent(r.requests / total)})`, value: r.requests }) },
    { name: "Predicted there", number: true, title: "share of the prompts predicted to be cached on the chosen replica", cell: (r) => percent(share(r.predicted_tokens, r.prompt_tokens)) },
    { name: "Best anywhere", number: true, title: "share predicted on the replica that held most", cell: (r) => percent(share(r.best_tokens, r.prompt_tokens)) },
  ], rows) : el("p", { class: "empty" }, "No request yet."));
}

export function showSpoilers(ledger) {
  const rows = ledger.spoilers || [];
  fill($("spoilers"), rows.length ? table("Cache spoilers", [
    { name: "Family", key: "name", cell: (s) => s.label ?? s.family },
    { name: "They part between", key: "from", cell: (s) => ({ text: `${s.unit === "bytes" ? "byte" : "token"} ${s.from} and ${s.to} of the prompt`, value: s.from }) },
    { name: "Times", key: "count", number: true, cell: (s) => ({ text: count(s.count), value: s.count }) },
    { name: "Tokens behind, in all", key: "tokens", number: true, cell: (s) => ({ text: count(s.tokens), value: s.tokens }) },
    { name: "Last seen", number: true, cell: (s) => `${seconds(s.idle_s)} ago` },
  ], rows) : el("p", { class: "empty" }, "None found."));
}

/* What the chosen replica was priced at. A policy that does not price has no such figures. */
function price(d) {
  if (typeof d.own_s !== "number") return { text: "not priced", title: "the policy in force goes by something else" };
  const due = d.due_tokens ? `; a copy of the first ${count(d.due_tokens)} tokens was due, and free` : "";
  return { text: [d.wait_s, d.own_s, d.toll_s].map(seconds).join(" + "), value: d.wait_s + d.own_s + d.toll_s,
    title: `wait for its turn + its own prefill + the delay of those behind it${due}` };
}

export function showDecisions(list) {
  $("decisions-card").hidden = !list;
  if (!list) return;
  fill($("decisions"), list.length ? table("Last requests", [
    { name: "Model", key: "name", cell: (d) => d.model },
    { name: "Ended", number: true, cell: (d) => `${seconds(d.age_s)} ago` },
    { name: "Workload", cell: (d) => d.workload },
    { name: "Replica", cell: (d) => d.replica },
    { name: "Reason", cell: (d) => el("span", { title: REASONS[d.reason] }, d.reason) },
    { name: "Wait", number: true, cell: (d) => d.wait_s == null ? "" : seconds(d.wait_s) },
    { name: "Own prefill", number: true, cell: (d) => d.own_s == null ? "" : seconds(d.own_s) },
    { name: "Toll", number: true, cell: (d) => d.toll_s == null ? "" : seconds(d.toll_s) },
    { name: "Prompt", number: true, cell: (d) => count(d.prompt_tokens) },
    { name: "Best anywhere", number: true, cell: (d) => count(d.best_tokens) },
    { name: "Predicted there", number: true, cell: (d) => count(d.predicted_tokens) },
    { name: "Observed", number: true, cell: (d) => count(d.observed_tokens) },
    { name: "Wait + own + toll", key: "price", title: "seconds that it was priced at where it went: wait for its turn, its own prefill, the delay of those behind it", cell: price },
  ], list.slice(0, LAST)) : el("p", { class: "empty" }, "No request yet."));
}
