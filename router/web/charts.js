/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Canvases with a sentence for those who hear the page and a table for those who want the numbers. Where the program was
 * built without the chart library the tables are all there is, and they are open.
 */
import { el, fill, say, table } from "./dom.js";

const Chart = window.Chart;
const drawn = new Map(); /* by id of the holder */

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function make(holder) {
  const says = el("p", { class: "hear" });
  const list = el("ul", { class: "keys", "aria-hidden": "true" });
  const canvas = el("canvas", { role: "img" });
  const box = el("div", { class: "canvas" }, canvas);
  const numbers = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "table" });
  const details = el("details", { open: !Chart }, el("summary", null, "As a table"), numbers);
  holder.replaceChildren(...(Chart ? [list, box] : []), says, details);
  return { canvas, says, list, details, numbers, chart: null };
}

const text = () => ({ color: colour("dim"), font: { size: 12 } });

export function axis(title, more = {}) {
  return { title: { display: true, text: title, ...text() }, ticks: { ...text(), ...(more.ticks || {}) }, grid: { color: colour("line") }, border: { color: colour("line") }, ...more.rest };
}

/*
 * spec: {type, data, options, keys: [{name, colour}], summary, columns, rows}. Datasets are kept by their place, so that an
 * update moves lines and does not draw them anew.
 */
export function draw(holder, spec) {
  let state = drawn.get(holder.id);
  if (!state) {
    state = make(holder);
    drawn.set(holder.id, state);
    state.details.addEventListener("toggle", () => numbers(state));
  }
  state.spec = spec;
  say(state.says, spec.summary);
  state.canvas.setAttribute("aria-label", spec.summary);
  fill(state.list, ...(spec.keys || []).map((key) => {
    const mark = el("i");
    mark.style.background = colour(key.colour);
    return el("li", null, mark, key.name);
  }));
  numbers(state);
  if (!Chart) return;
  if (!state.chart) {
    state.chart = new Chart(state.canvas, {
      type: spec.type, data: spec.data,
      options: {
        responsive: true, maintainAspectRatio: false, animation: false, normalized: true, locale: "en",
        plugins: { legend: { display: false }, tooltip: spec.tooltip || {} }, ...spec.options,
      },
    });
  } else {
    state.chart.data = spec.data;
    Object.assign(state.chart.options, spec.options);
    state.chart.update("none");
  }
}

function numbers(state) {
  if (!state.details.open || !state.spec) return;
  state.numbers.setAttribute("aria-label", state.spec.summary);
  fill(state.numbers, table(state.spec.summary, state.spec.columns, state.spec.rows(), false));
}
