/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as people read them. null is unknown, and never becomes 0. */

const UNKNOWN = "unknown";
const known = (n) => typeof n === "number" && Number.isFinite(n);

function digits(n) {
  return n >= 100 ? n.toFixed(0) : n >= 10 ? n.toFixed(1) : n.toFixed(2);
}

export function count(n) {
  if (!known(n)) return UNKNOWN;
  if (n < 1000) return String(Math.round(n * 10) / 10);
  for (const [size, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (n >= size * 0.9995) return `${digits(n / size)}\u00a0${name}`;
  return String(Math.round(n));
}

/* For axes and rough figures: two digits. */
export function short(n) {
  if (!known(n)) return UNKNOWN;
  for (const [size, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (n >= size * 0.995) return `${Number((n / size).toPrecision(n >= size * 100 ? 3 : 2))}\u00a0${name}`;
  return String(Number(n.toPrecision(n >= 100 ? 3 : 2)));
}

export function share(part, whole) {
  return known(part) && known(whole) && whole > 0 ? part / whole : null;
}

export function percent(x) {
  if (!known(x)) return UNKNOWN;
  const p = x * 100;
  return `${p > 0 && p < 9.95 ? p.toFixed(1) : p.toFixed(0)}\u00a0%`;
}

export function points(x) {
  if (!known(x)) return UNKNOWN;
  const p = Math.round(x * 1000) / 10;
  return `${p > 0 ? "+" : p < 0 ? "−" : "±"}${Math.abs(p).toFixed(1)}\u00a0points`;
}

export function seconds(s) {
  if (!known(s)) return UNKNOWN;
  if (s === 0) return "0 s";
  if (s < 0.9995) return `${Math.max(1, Math.round(s * 1000))}\u00a0ms`;
  if (s < 99.5) return `${digits(s).replace(/\.?0+$/, "")}\u00a0s`;
  if (s < 99.5 * 60) return `${digits(s / 60)}\u00a0min`;
  if (s < 99.5 * 3600) return `${digits(s / 3600)}\u00a0h`;
  return `${digits(s / 86400)}\u00a0days`;
}

export function times(x) {
  return known(x) ? `${x.toFixed(2)}\u00a0×` : UNKNOWN;
}

export function roughSeconds(s) {
  return !known(s) ? UNKNOWN : s < 0.95 ? `${short(s * 1000)}\u00a0ms` : s < 99 ? `${short(s)}\u00a0s` : s < 99 * 60 ? `${short(s / 60)}\u00a0min` : s < 99 * 3600 ? `${short(s / 3600)}\u00a0h` : `${short(s / 86400)}\u00a0days`;
}

/* Bounds of the bucket that the median of a histogram falls into: 0, then [2^(n-1), 2^n). The first bucket is left
 * out if asked. null without anything in it. */
export function median(buckets, skipFirst) {
  const counts = (buckets || []).map((n, i) => (skipFirst && i === 0 ? 0 : n));
  const total = counts.reduce((a, b) => a + b, 0);
  let sum = 0;
  if (!total) return null;
  for (let i = 0; i < counts.length; i++) {
    sum += counts[i];
    if (sum * 2 >= total) return i === 0 ? [0, 0] : [2 ** (i - 1), 2 ** i];
  }
  return null;
}
