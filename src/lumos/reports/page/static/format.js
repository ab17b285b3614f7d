// Format numbers for people.

const UNITS = [["s", 1e9], ["ms", 1e6], ["µs", 1e3]];

export const cut = (text, length = 60) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

export function duration(ns, signed = false) {
  if (ns === null || ns === undefined) return "–";
  const sign = signed && ns > 0 ? "+" : "";
  for (const [unit, size] of UNITS)
    if (Math.abs(ns) >= size) return `${sign}${(ns / size).toFixed(Math.abs(ns) / size >= 100 ? 1 : 2)} ${unit}`;
  return `${sign}${Math.round(ns)} ns`;
}

// A time on an axis up to `end` whose ticks are `tick` apart: with so many decimals that neighbouring ticks differ. All in ns.
export function tickText(ns, tick, end) {
  const [unit, size] = UNITS.find(([, s]) => Math.abs(end) >= s) ?? ["ns", 1];
  const decimals = Math.max(Math.ceil(-Math.log10(tick / size) - 1e-9), 0);
  const text = (ns / size).toFixed(decimals);
  return `${Number(text) === 0 ? text.replace("-", "") : text} ${unit}`;
}

export const seconds = (s, signed = false) => duration(s === null || s === undefined ? null : s * 1e9, signed);

export function percent(fraction, { signed = false, decimals = 2 } = {}) {
  if (fraction === null || fraction === undefined) return "–";
  const value = (100 * fraction).toFixed(decimals);
  return `${signed && fraction >= 0 ? "+" : ""}${Number(value) === 0 ? value.replace("-", "") : value} %`;
}

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  for (const [unit, size] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
    if (n >= size) return `${(n / size).toFixed(n / size >= 100 ? 1 : 2)} ${unit}`;
  return `${n} B`;
}

export function rate(bytesPerSecond) {
  if (bytesPerSecond === null || bytesPerSecond === undefined) return "–";
  return bytesPerSecond >= 1e9 ? `${(bytesPerSecond / 1e9).toFixed(2)} GB/s` : `${(bytesPerSecond / 1e6).toFixed(2)} MB/s`;
}

export const count = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
