// Tiles: appends, reads, latency and lag, each as a figure and a chart. Under the pointer the figures are those of that moment.

import { Chart, cursor } from "./chart.js";
import { attribute, h, keyed, text } from "./dom.js";
import { bytes, latency, short, span } from "./format.js";

const LAGS_MAX = 4;

/** The values of one sample, by the names that the charts know them by. */
export function sampled(status) {
  const rates = status.rates ?? {};
  const values = {
    appends: rates.append_entries_per_s ?? null,
    append_bytes: rates.append_bytes_per_s ?? null,
    reads: rates.read_entries_per_s ?? null,
    read_bytes: rates.read_bytes_per_s ?? null,
    p50: rates.append_latency_ms?.p50 ?? null,
    p99: rates.append_latency_ms?.p99 ?? null,
  };
  for (const reader of status.readers) values[lagName(reader)] = reader.lag_entries;
  return values;
}

function lagName(reader) {
  return `lag:${reader.topic}/${reader.name}`;
}

const rate = (value) => `${short(value)}/s`;
const perSecond = (value) => (typeof value === "number" ? `${bytes(value)}/s` : "");

export class Tiles {
  constructor(host, history) {
    this.history = history;
    this.tiles = [
      new Tile("Appends", rate, 10, [{ name: "appends", tone: "blue", unit: "entries/s", format: short }], {
        more: (values) => perSecond(values.append_bytes),
      }),
      new Tile("Reads", rate, 10, [{ name: "reads", tone: "teal", unit: "entries/s", format: short }], {
        more: (values) => perSecond(values.read_bytes),
      }),
      new Tile("Append latency", latency, 1, [
        { name: "p50", tone: "violet", unit: "median", format: latency },
        { name: "p99", tone: "violet faint", unit: "99 %", format: latency },
      ]),
      (this.lag = new Tile("Lag of readers", short, 10, [], { empty: "No named reader has reported its position." })),
    ];
    host.append(...this.tiles.map((tile) => tile.element));
    cursor.addEventListener("move", () => this.show());
  }

  update(status) {
    const furthest = [...status.readers].sort((one, other) => (other.lag_entries ?? 0) - (one.lag_entries ?? 0)).slice(0, LAGS_MAX);
    // By name, not by lag: a line keeps its colour while its reader is among the furthest behind.
    furthest.sort((one, other) => lagName(one).localeCompare(lagName(other)));
    this.lag.series(
      furthest.map((reader, i) => ({
        name: lagName(reader),
        tone: ["amber", "blue", "teal", "violet"][i],
        unit: reader.name,
        format: short,
      })),
    );
    for (const tile of this.tiles) tile.chart.draw(this.history);
    this.show();
  }

  show() {
    const { samples } = this.history;
    if (!samples.length) return;
    const sample = cursor.age === null ? samples.at(-1) : this.history.at(this.history.now - cursor.age);
    const age = cursor.age === null ? "" : `${span(this.history.now - sample.time)} ago`;
    for (const tile of this.tiles) tile.show(sample.values, age);
  }
}

class Tile {
  constructor(title, grid, least, series, { more = () => "", empty = "" } = {}) {
    this.more = more;
    this.chart = new Chart({ label: title, series: [], format: grid, least });
    this.figures = h("div", { class: "figures" });
    this.when = h("span", { class: "when" });
    this.rest = h("span", { class: "rest" });
    this.none = h("p", { class: "none", text: empty, hidden: !empty });
    const head = h("figcaption", {}, h("h2", { text: title }), this.when, this.rest);
    this.element = h("figure", { class: "tile" }, head, this.figures, this.chart.element, this.none);
    this.series(series);
  }

  series(series) {
    this.chart.series = series;
    attribute(this.chart.area, "class", `area ${series[0]?.tone ?? ""} ${series.length > 2 ? "off" : ""}`);
    attribute(this.none, "hidden", series.length > 0 || !this.none.textContent);
    keyed(this.figures, series, (one) => one.name, makeFigure, (element, one) => {
      attribute(element, "class", `figure ${series.length > 1 ? "keyed" : ""} ${one.tone}`);
      text(element.lastChild, one.unit);
    });
  }

  show(values, age) {
    text(this.when, age);
    text(this.rest, this.more(values));
    const figures = this.chart.series.map(({ name, format, unit }, i) => {
      text(this.figures.children[i].firstChild, format(values[name]));
      return `${unit} ${format(values[name])}`;
    });
    attribute(this.chart.element, "aria-label", [this.chart.label, ...figures, age].filter(Boolean).join(", "));
  }
}

function makeFigure() {
  return h("p", {}, h("b", { text: "–" }), h("span"));
}
