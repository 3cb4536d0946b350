/* SPDX-License-Identifier: Apache-2.0 */
/* Making elements. Names come from clients: text goes into the page as text nodes and attributes, nothing else. */

export const $ = (id) => document.getElementById(id);

export function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {}))
    if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : String(value));
  node.append(...children.filter((child) => child !== null && child !== undefined).map(shown));
  return node;
}

/* A name may hold any bytes: those that would be invisible or turn the text around are shown as such. */
function shown(child) {
  return typeof child === "string" ? child.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, "\ufffd") : child;
}

/* Replaces content only where it differs, so that a selection or a screen reader's place is not lost for nothing. */
export function fill(node, ...children) {
  const next = document.createElement("div"); /* not a select: that would pick one of its options as they move */
  next.append(...children.map(shown));
  if (next.innerHTML !== node.innerHTML) node.replaceChildren(...next.childNodes);
}

export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/* A bar of parts: [{key, share}]. Widths by script, as the page's policy has no inline styles. */
export function bar(parts, label, className = "bar") {
  const node = el("div", { class: className, role: "img", "aria-label": label });
  for (const part of parts) {
    const piece = el("i", { class: part.key });
    piece.style.width = `${part.share * 100}%`;
    node.append(piece);
  }
  return node;
}

/*
 * columns: [{name, number, full, cell: (row) => text, node, or {text, value, title}}], the first names the row. `cards`:
 * on narrow screens each row is a block; the roles are stated since blocks are no table to a browser.
 */
export function table(caption, columns, rows, cards = true) {
  const head = el("tr", { role: "row" }, ...columns.map((c) =>
    el("th", { role: "columnheader", scope: "col", class: c.number ? "n" : null, title: c.title }, c.name)));
  const body = el("tbody", { role: "rowgroup" }, ...rows.map((row) =>
    el("tr", { role: "row" }, ...columns.map((c, i) => cell(c, row, i === 0)))));
  return el("table", { role: "table", class: cards ? "cards" : null },
    el("caption", { class: "hear" }, caption), el("thead", { role: "rowgroup" }, head), body);
}

function cell(column, row, first) {
  let content = column.cell(row);
  const given = content && typeof content === "object" && !(content instanceof Node) ? content : { text: content };
  const unknown = given.text === "unknown";
  content = unknown ? el("span", { class: "unknown" }, "unknown") : given.text;
  const name = [column.number ? "n" : "", column.full ? "full" : ""].join(" ").trim();
  return el(first ? "th" : "td", {
    role: first ? "rowheader" : "cell", scope: first ? "row" : null, class: name || null, title: given.title,
    "data-label": first ? null : column.name, "data-value": given.value, "data-column": column.key,
  }, content ?? "");
}

export function tag(kind, text) {
  return el("span", { class: `tag ${kind}` }, text);
}
