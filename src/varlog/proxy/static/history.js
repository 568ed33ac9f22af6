// History: one sample per second for the charts, as far back as they reach. Survives a reload of the page.

export const WINDOW_S = 150;
const KEY = "varlog.history";
// Two samples that lie further apart than this are not joined by a line: nothing is known about the time between them.
const GAP_S = 4;

export class History {
  constructor() {
    this.samples = restored();
    addEventListener("pagehide", () => keep(this.samples));
  }

  /** A sample is {time, level, values: {name: number | null}}; times are seconds of this browser's clock. */
  add(sample) {
    const last = this.samples.at(-1);
    if (last && sample.time - last.time > GAP_S) this.samples.push({ time: last.time + 0.001, level: "ok", values: {} });
    this.samples.push(sample);
    while (this.samples.length && this.samples[0].time < sample.time - WINDOW_S - GAP_S) this.samples.shift();
  }

  get now() {
    return this.samples.at(-1)?.time ?? Date.now() / 1000;
  }

  /** The sample nearest to a time, or null. */
  at(time) {
    let found = null;
    for (const sample of this.samples) {
      if (found === null || Math.abs(sample.time - time) < Math.abs(found.time - time)) found = sample;
    }
    return found;
  }

  /** Spans [begin, end, level] in which something was wrong. */
  troubled() {
    const spans = [];
    for (const { time, level } of this.samples) {
      const last = spans.at(-1);
      if (level === "ok" || level === "note") continue;
      if (last && time - last[1] < 2.5 && last[2] === level) last[1] = time;
      else spans.push([time - 1, time, level]);
    }
    return spans;
  }
}

function restored() {
  try {
    const samples = JSON.parse(sessionStorage.getItem(KEY) ?? "[]");
    return samples.filter((sample) => sample.time > Date.now() / 1000 - WINDOW_S);
  } catch {
    return []; // storage is switched off, or holds what an older version left
  }
}

function keep(samples) {
  try {
    sessionStorage.setItem(KEY, JSON.stringify(samples));
  } catch {
    // Nothing is lost but the lines of the last minutes.
  }
}
