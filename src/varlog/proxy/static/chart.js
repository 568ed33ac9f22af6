// Chart: lines over the last minutes, in SVG. All charts share one cursor, which is an age: "20 s ago" under every pointer.

import { WINDOW_S } from "./history.js";
import { attribute, s, text } from "./dom.js";
import { span } from "./format.js";

const BOTTOM = 17; // room for the time axis
const TOP = 14; // room for the label of the upper grid line

/** Where all charts are being looked at: seconds before now, or null for now. */
export const cursor = Object.assign(new EventTarget(), { age: null });

function point(age) {
  if (cursor.age === age) return;
  cursor.age = age;
  cursor.dispatchEvent(new Event("move"));
}

export class Chart {
  /** `series`: [{name, tone}], the first one filled; `format(value)` labels the grid; `least`: the scale is never smaller. */
  constructor({ label, series, format, least }) {
    Object.assign(this, { label, series, format, least, top: least, width: 0, height: 0, history: null });
    this.bands = s("g");
    this.grid = s("g", { class: "grid" });
    this.area = s("path", { class: `area ${series[0]?.tone ?? ""}` });
    this.lines = s("g");
    this.hair = s("line", { class: "hair", y1: 0 });
    this.dots = s("g");
    this.labels = s("g", { class: "labels" }); // above the lines, which they would be lost behind
    this.ages = s("g", { class: "axis" });
    this.element = s(
      "svg",
      { class: "chart", role: "img", tabindex: 0, "aria-label": label },
      this.bands, this.grid, this.area, this.lines, this.labels, this.ages, this.hair, this.dots,
    );
    this.listen();
    new ResizeObserver(([box]) => {
      this.width = Math.round(box.contentRect.width);
      this.height = Math.round(box.contentRect.height);
      attribute(this.element, "viewBox", `0 0 ${this.width} ${this.height}`);
      this.draw(this.history);
    }).observe(this.element);
  }

  listen() {
    const { element } = this;
    element.addEventListener("pointermove", (event) => {
      const box = element.getBoundingClientRect();
      point(Math.max(0, Math.min(WINDOW_S, (1 - (event.clientX - box.left) / box.width) * WINDOW_S)));
    });
    element.addEventListener("pointerleave", () => point(null));
    element.addEventListener("blur", () => point(null));
    element.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: 1, ArrowRight: -1 }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      const age = (cursor.age ?? 0) + step * (event.shiftKey ? 10 : 1);
      point(age < 0 ? null : Math.min(age, WINDOW_S));
    });
    cursor.addEventListener("move", () => this.drawCursor());
  }

  x(time) {
    return this.width * (1 - (this.history.now - time) / WINDOW_S);
  }

  y(value) {
    return TOP + (this.height - TOP - BOTTOM) * (1 - value / this.top);
  }

  draw(history) {
    this.history = history;
    if (!history || !this.width) return;
    this.top = scaled(this.top, this.least, this.most());
    this.drawBands();
    this.drawGrid();
    const base = this.y(0);
    const runs = this.series.map(({ name }) => this.runs(name));
    attribute(this.area, "d", (runs[0] ?? []).map((run) => filled(run, base)).join(""));
    this.reuse(this.lines, this.series, "path", (line, { tone }, i) => {
      attribute(line, "class", `line ${tone}`);
      attribute(line, "d", runs[i].map(path).join(""));
    });
    this.drawCursor();
  }

  most() {
    let most = 0;
    for (const { values } of this.history.samples) {
      for (const { name } of this.series) most = Math.max(most, values[name] ?? 0);
    }
    return most;
  }

  /** Runs of points that belong together; a sample without a value ends one. */
  runs(name) {
    const runs = [[]];
    for (const { time, values } of this.history.samples) {
      const value = values[name];
      if (value === null || value === undefined) runs.push([]);
      else runs.at(-1).push([this.x(time), this.y(value)]);
    }
    return runs.filter((run) => run.length);
  }

  drawBands() {
    this.reuse(this.bands, this.history.troubled(), "rect", (band, [begin, end, level]) => {
      attribute(band, "class", `band ${level}`);
      attribute(band, "x", Math.max(0, this.x(begin)).toFixed(1));
      attribute(band, "width", Math.max(1, this.x(end) - Math.max(0, this.x(begin))).toFixed(1));
      attribute(band, "y", 0);
      attribute(band, "height", this.height - BOTTOM);
    });
  }

  drawGrid() {
    const height = (share) => Math.round(this.y(this.top * share)) + 0.5;
    this.reuse(this.grid, [0, 0.5, 1], "line", (line, share) => {
      attribute(line, "x2", this.width);
      for (const name of ["y1", "y2"]) attribute(line, name, height(share));
    });
    this.reuse(this.labels, [0.5, 1], "text", (label, share) => {
      attribute(label, "x", 12);
      attribute(label, "y", height(share) - 3.5);
      text(label, this.format(this.top * share).replace(/\.0(?!\d)/, ""));
    });
    const ages = this.width > 260 ? [120, 60, 0] : [120, 0];
    this.reuse(this.ages, ages, "text", (label, age) => {
      attribute(label, "x", age ? (this.width * (1 - age / WINDOW_S)).toFixed(1) : this.width - 12);
      attribute(label, "y", this.height - 5);
      attribute(label, "text-anchor", age ? "middle" : "end");
      text(label, age ? `${span(age)} ago` : "now");
    });
  }

  drawCursor() {
    const shown = this.history && this.width && cursor.age !== null && this.history.samples.length > 0;
    attribute(this.hair, "visibility", shown ? null : "hidden");
    const sample = shown ? this.history.at(this.history.now - cursor.age) : null;
    const seen = sample ? this.series.filter(({ name }) => typeof sample.values[name] === "number") : [];
    if (sample) {
      const x = this.x(sample.time).toFixed(1);
      for (const name of ["x1", "x2"]) attribute(this.hair, name, x);
      attribute(this.hair, "y2", this.height - BOTTOM);
    }
    this.reuse(this.dots, seen, "circle", (dot, { name, tone }) => {
      attribute(dot, "class", `dot ${tone}`);
      attribute(dot, "r", 3);
      attribute(dot, "cx", this.x(sample.time).toFixed(1));
      attribute(dot, "cy", this.y(sample.values[name]).toFixed(1));
    });
  }

  reuse(parent, items, name, update) {
    while (parent.childNodes.length > items.length) parent.lastChild.remove();
    items.forEach((item, i) => {
      if (!parent.childNodes[i]) parent.append(s(name));
      update(parent.childNodes[i], item, i);
    });
  }
}

function path(run) {
  if (run.length === 1) return `M${at(run[0])}h0.1`;
  return `M${run.map(at).join("L")}`;
}

function filled(run, base) {
  return `M${run[0][0].toFixed(1)} ${base}L${run.map(at).join("L")}L${run.at(-1)[0].toFixed(1)} ${base}Z`;
}

function at([x, y]) {
  return `${x.toFixed(1)} ${y.toFixed(1)}`;
}

/** The upper end of a scale: a round number, kept until the lines are well below it, so that it does not hop about. */
export function scaled(before, least, most) {
  const wanted = Math.max(least, most * 1.05);
  if (wanted <= before && wanted > before * 0.4) return before;
  const size = 10 ** Math.floor(Math.log10(wanted));
  return size * [1, 2, 4, 6, 8, 10].find((step) => step * size >= wanted);
}
