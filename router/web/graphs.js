/* SPDX-License-Identifier: Apache-2.0 */
/* The sections that are charts. */
import { axis, colour, draw } from "./charts.js";
import { $, fill, say, table } from "./dom.js";
import { count, percent, seconds, share, short, times } from "./format.js";
import { PARTS, all, capacity, curveAt, rules, spanText, sumsOf, truth } from "./model.js";

const SPANS = { "1m": 60, "10m": 600, "1h": 3600, life: Infinity };

function ago(s) {
  if (s > -0.5) return "now";
  return `−${s > -91 ? `${Math.round(-s)}\u00a0s` : s > -5400 ? `${Math.round(-s / 60)}\u00a0min` : `${(-s / 3600).toFixed(1)}\u00a0h`}`;
}

/* Steps of the window, as pairs of points: a step is flat. */
function stepped(steps, now, value, part) {
  return steps.flatMap((step) => {
    const y = value(step), more = part ? { part: part(step) } : {};
    return [{ x: step.from - now, y, ...more }, { x: step.to - now, y, ...more }];
  });
}

function line(name, colourName, data, more) {
  return { label: name, data, borderColor: colour(colourName), backgroundColor: colour(colourName), borderWidth: 2, pointRadius: 0, spanGaps: false, ...more };
}

function timeAxis(steps, now, window) {
  const from = Math.max(-SPANS[window], Math.min(-10, steps.length ? steps[0].from - now : 0));
  return axis("", { ticks: { maxTicksLimit: 6, maxRotation: 0, callback: ago }, rest: { type: "linear", min: from, max: 0, title: { display: false } } });
}

const tips = { mode: "nearest", axis: "x", intersect: false };
const lastRows = (steps) => steps.slice(-40).reverse();

export function drawTime(history, now, window) {
  const steps = history.steps.filter((s) => s.to >= now - SPANS[window]);
  const rate = (step, key) => step.sums[`${key}_tokens`] / (step.to - step.from);
  /* Stacked here: the library adds up what has the same x, and a step has two values where it begins. */
  const upTo = (step, last) => PARTS.slice(0, last + 1).reduce((sum, p) => sum + rate(step, p.key), 0);
  const last = steps[steps.length - 1];
  draw($("time"), {
    type: "line", keys: PARTS.map((p) => ({ name: p.name, colour: p.key })),
    data: { datasets: PARTS.map((p, i) => line(p.name, p.key, stepped(steps, now, (s) => upTo(s, i), (s) => rate(s, p.key)), { fill: i ? "-1" : "origin", borderWidth: 0 })) },
    options: { interaction: tips, scales: { x: timeAxis(steps, now, window), y: axis("tokens/s", { ticks: { callback: short }, rest: { min: 0 } }) } },
    tooltip: { callbacks: { title: (items) => (items.length ? ago(items[0].parsed.x) : ""), label: (i) => `${i.dataset.label}: ${count(i.raw.part)} tokens/s` } },
    summary: last ? `Prompt tokens per second over time. Last: ${PARTS.map((p) => `${p.name} ${count(rate(last, p.key))}`).join(", ")}.` : "Prompt tokens per second over time: nothing yet.",
    columns: [{ name: "From", cell: (s) => ago(s.from - now) }, { name: "To", cell: (s) => ago(s.to - now) },
      ...PARTS.map((p) => ({ name: `${p.name}, tokens/s`, number: true, cell: (s) => count(rate(s, p.key)) }))],
    rows: () => lastRows(steps),
  });
}

export function drawTruth(account, history, now, window) {
  const sums = sumsOf(account, window);
  const steps = history.steps.filter((s) => s.to >= now - SPANS[window]);
  const is = sums ? truth(sums) : { predicted: null, observed: null };
  const untold = sums ? share(sums.unobserved_prompt_tokens, sums.prompt_tokens) : null;
  let note = is.observed === null
    ? `No engine told in ${spanText(window, sums)} what it had cached.`
    : `In ${spanText(window, sums)} ${percent(is.predicted)} of the prompts was predicted to be cached, the engines reported ${percent(is.observed)}.`;
  if (untold) note += ` ${percent(untold)} of the tokens are left out: their engines do not tell.`;
  say($("truth-note"), note);
  draw($("truth"), {
    type: "line", keys: [{ name: "predicted", colour: "placement" }, { name: "observed", colour: "won" }],
    data: { datasets: [
      line("observed", "won", stepped(steps, now, (s) => truth(s.sums).observed), { borderWidth: 4 }),
      line("predicted", "placement", stepped(steps, now, (s) => truth(s.sums).predicted), { borderDash: [6, 4] }),
    ] },
    options: { interaction: tips, scales: { x: timeAxis(steps, now, window), y: axis("share of the prompts", { ticks: { callback: percent }, rest: { min: 0, max: 1 } }) } },
    tooltip: { callbacks: { title: (items) => (items.length ? ago(items[0].parsed.x) : ""), label: (i) => `${i.dataset.label}: ${percent(i.raw.y)}` } },
    summary: note,
    columns: [{ name: "From", cell: (s) => ago(s.from - now) }, { name: "To", cell: (s) => ago(s.to - now) },
      { name: "Predicted", number: true, cell: (s) => percent(truth(s.sums).predicted) }, { name: "Observed", number: true, cell: (s) => percent(truth(s.sums).observed) }],
    rows: () => lastRows(steps),
  });
}

const RULE_COLUMNS = [
  { name: "Rule", key: "name", cell: (r) => r.name },
  { name: "Reused", key: "reuse", number: true, cell: (r) => ({ text: percent(r.reuse), value: r.reuse }) },
  { name: "Time avoided", key: "avoided", number: true, cell: (r) => ({ text: seconds(r.avoided_s), value: r.avoided_s }) },
  { name: "Busiest replica", key: "busiest", number: true, title: "its computed tokens over the mean, since start", cell: (r) => ({ text: times(r.busiest), value: r.busiest }) },
];

export function drawRules(ledger, window, policy) {
  const list = rules(ledger, window, policy);
  draw($("rules"), {
    type: "bar",
    data: { labels: list.map((r) => r.name), datasets: [{ label: "reused", data: list.map((r) => r.reuse), backgroundColor: list.map((r) => colour(r.key === "fact" ? "won" : r.key === "shadow" ? "series" : "workload")), maxBarThickness: 34 }] },
    options: { indexAxis: "y", scales: { x: axis("share of the prompt tokens reused", { ticks: { callback: percent }, rest: { min: 0, max: 1 } }), y: axis("", { rest: { title: { display: false }, grid: { display: false } } }) } },
    tooltip: { callbacks: { label: (i) => `${percent(i.raw)} reused` } },
    summary: `Reused in ${spanText(window, sumsOf(all(ledger), window))}: ${list.map((r) => `${r.name} ${percent(r.reuse)}`).join(", ")}.`,
    columns: RULE_COLUMNS, rows: () => list,
  });
  $("rules").querySelector("details").hidden = true; /* the table below is always there */
  fill($("rules-table"), list.length > 1 ? table("Against simpler rules", RULE_COLUMNS, list) : "Switched off (--counterfactual).");
}

export function drawCurve(ledger, replicas, window) {
  const curve = ledger.curve[window === "life" ? "life" : "1h"];
  const fleet = capacity(replicas);
  const here = fleet.known ? curveAt(curve, fleet.tokens) : null;
  const since = window === "life" ? "since start" : "in the last hour";
  let note = `One cache for all, as large as any: what these prompts ${since} could reuse at best.`;
  if (here !== null) note += ` With the fleet's ${count(fleet.tokens)} tokens ${percent(here)}, with unlimited memory ${percent(curve.ideal)}.`;
  else if (curve.ideal !== null) note += ` With unlimited memory ${percent(curve.ideal)}.`;
  if (fleet.known < fleet.all) note += ` The capacity of ${fleet.all - fleet.known} of ${fleet.all} replicas is unknown and not in it.`;
  say($("curve-note"), note);
  draw($("curve"), {
    type: "line", keys: [{ name: "reused", colour: "series" }, ...(fleet.known ? [{ name: "the fleet's capacity", colour: "placement" }] : [])],
    data: { datasets: [
      line("reused", "series", curve.points.map(([x, y]) => ({ x, y }))),
      line("the fleet's capacity", "placement", fleet.known ? [{ x: fleet.tokens, y: 0 }, { x: fleet.tokens, y: 1 }] : [], { borderDash: [6, 4] }),
      line("here", "placement", here === null ? [] : [{ x: fleet.tokens, y: here }], { pointRadius: 6, showLine: false }),
    ] },
    options: { interaction: { mode: "nearest", intersect: false }, scales: {
      x: axis("size of the cache, tokens", { ticks: { callback: (v) => (Number.isInteger(Math.log2(v) / 2) ? short(v) : ""), maxRotation: 0, autoSkip: false }, rest: { type: "logarithmic", min: 1024, max: span(curve, fleet), afterBuildTicks: doublings } }),
      y: axis("reused", { ticks: { callback: percent }, rest: { min: 0, max: 1 } }) } },
    tooltip: { callbacks: { title: () => "", label: (i) => `${count(i.raw.x)} tokens: ${percent(i.raw.y)}` } },
    summary: note,
    columns: [{ name: "Cache, tokens", cell: ([x]) => count(x) }, { name: "Reused", number: true, cell: ([, y]) => percent(y) }],
    rows: () => curve.points.filter((_, i) => i % 4 === 0),
  });
}

/* Up to where nothing more is gained, and some way beyond the fleet. */
function span(curve, fleet) {
  const flat = curve.points.find(([, y]) => curve.ideal !== null && y >= curve.ideal * 0.999);
  return Math.max(65536, flat ? flat[0] * 4 : 0, fleet.tokens * 4);
}

function doublings(scale) {
  scale.ticks = [];
  for (let v = 1024; v <= scale.max; v *= 2) scale.ticks.push({ value: v });
}

export function drawSpread(ledger, window) {
  const list = ((ledger.accounts && ledger.accounts.replica) || []).filter((a) => a.present || a.windows[window].requests > 0);
  const sum = (key) => list.reduce((total, a) => total + key(a.windows[window]), 0);
  const requests = (s) => s.requests, computed = (s) => s.prompt_tokens - s.won_tokens;
  const totals = [sum(requests), sum(computed)];
  const real = ledger.balance.real;
  const note = real.requests.max_mean === null ? "No request yet." :
    `Since start the busiest replica got ${times(real.requests.max_mean)} the mean number of requests and computed ${times(real.computed_tokens.max_mean)} the mean number of tokens.`;
  say($("spread-note"), note);
  const shares = (key, total) => list.map((a) => share(key(a.windows[window]), total));
  draw($("spread"), {
    type: "bar", keys: [{ name: "requests", colour: "series" }, { name: "computed tokens", colour: "placement" }],
    data: { labels: list.map((a) => a.name), datasets: [
      { label: "requests", data: shares(requests, totals[0]), backgroundColor: colour("series"), maxBarThickness: 40 },
      { label: "computed tokens", data: shares(computed, totals[1]), backgroundColor: colour("placement"), maxBarThickness: 40 },
    ] },
    options: { scales: { x: axis("", { ticks: { maxRotation: 40, callback(_, i) { const name = list[i] ? list[i].name : ""; return name.length > 18 ? `${name.slice(0, 17)}…` : name; } }, rest: { title: { display: false }, grid: { display: false } } }), y: axis("share of the fleet's", { ticks: { callback: percent }, rest: { min: 0 } }) } },
    tooltip: { callbacks: { label: (i) => `${i.dataset.label}: ${percent(i.raw)}` } },
    summary: note,
    columns: [{ name: "Replica", cell: (a) => a.name },
      { name: "Requests", number: true, cell: (a) => count(a.windows[window].requests) },
      { name: "Computed tokens", number: true, cell: (a) => count(computed(a.windows[window])) }],
    rows: () => list,
  });
}
