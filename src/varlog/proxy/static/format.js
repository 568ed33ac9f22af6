// Words and numbers: counts, bytes, spans of time and times of day, as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const exact = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

export const NOTHING = "–";

/** 12,345 */
export function count(value) {
  return value === null || value === undefined ? NOTHING : whole.format(value);
}

/** Short enough for a tile, with about three digits: 7.5, 832, 12.4k, 1.03M. */
export function short(value) {
  if (value === null || value === undefined) return NOTHING;
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e4]]) {
    if (value >= size) return digits(value / (unit === "k" ? 1e3 : size)) + unit;
  }
  return value >= 100 || Number.isInteger(value) ? whole.format(value) : digits(value);
}

function digits(value) {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2).replace(/\.?0+$/, "");
}

/** 1.2 MB, as `varlog status` says it. */
export function bytes(value) {
  if (value === null || value === undefined) return NOTHING;
  let left = value;
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (Math.round(left) < 1000 || unit === "TB") return unit === "B" ? `${whole.format(left)} B` : `${digits(left)} ${unit}`;
    left /= 1000;
  }
  return NOTHING;
}

/** Milliseconds, from microseconds to minutes: 0.35 ms, 12.4 ms, 1.2 s. */
export function latency(ms) {
  if (ms === null || ms === undefined) return NOTHING;
  return ms < 1000 ? `${digits(ms)} ms` : `${digits(ms / 1000)} s`;
}

/** 8 s, 3 min, 2 h, 5 d */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= length) return `${Math.round(seconds / length)} ${unit}`;
  }
  return `${Math.max(0, Math.round(seconds))} s`;
}

/** 14:03:27 of a time that the server sent (RFC 3339, or seconds since 1970). */
export function timeOfDay(time) {
  const at = instant(time);
  return at ? clock.format(at) : NOTHING;
}

/** The rest of it: .042 */
export function milliseconds(time) {
  const at = instant(time);
  return at ? `.${String(at.getMilliseconds()).padStart(3, "0")}` : "";
}

export function dateAndTime(time) {
  const at = instant(time);
  return at ? exact.format(at) + milliseconds(time) : NOTHING;
}

export function instant(time) {
  if (time === null || time === undefined) return null;
  const at = new Date(typeof time === "number" ? time * 1000 : time);
  return Number.isNaN(at.getTime()) ? null : at;
}

/** "1 node", "3 nodes" */
export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}
