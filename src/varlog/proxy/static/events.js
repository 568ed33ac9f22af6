// Events: what the manager does or waits for now, and what it did lately, newest first.

import { attribute, h, keyed, text } from "./dom.js";
import { timeOfDay } from "./format.js";

const SHOWN_MAX = 60;

export class Events {
  constructor(host) {
    this.now = h("ul", { class: "now", "aria-label": "Now" });
    this.list = h("ol", { class: "lately", "aria-label": "Lately" });
    this.empty = h("p", { class: "empty", text: "No events yet. Repairs, moves and new topics appear here." });
    this.known = false;
    host.append(this.now, this.list, this.empty);
  }

  update(status) {
    const waits = grouped(status.log_streams.filter((stream) => stream.waiting_for && !stream.sealed_by_admin));
    keyed(this.now, waits, ({ numbers }) => numbers, makeWait, (element, { numbers, wait }) => {
      text(element.children[1], `${numbers.includes(",") ? "streams" : "stream"} ${numbers}`);
      text(element.children[2], wait);
    });
    const events = numbered(status.events).slice(-SHOWN_MAX).reverse();
    attribute(this.empty, "hidden", events.length + waits.length > 0);
    events.forEach((event, i) => (event.same = i > 0 && timeOfDay(events[i - 1].time) === timeOfDay(event.time)));
    // Events of one second show the time only once.
    const make = (event) => makeEvent(event, this.known);
    keyed(this.list, events, ({ key }) => key, make, (item, event) => item.classList.toggle("same", event.same));
    this.known = true; // later events are highlighted as new
  }
}

/** What several streams wait for is shown once. */
function grouped(streams) {
  const groups = new Map();
  for (const { log_stream: number, waiting_for: wait } of streams) groups.set(wait, [...(groups.get(wait) ?? []), number]);
  return [...groups].map(([wait, numbers]) => ({ wait, numbers: numbers.join(", ") }));
}

/** Two events of one moment may have the same text. */
function numbered(events) {
  const seen = new Map();
  return events.map((event) => {
    const words = `${event.time} ${event.log_stream} ${event.message}`;
    const before = seen.get(words) ?? 0;
    seen.set(words, before + 1);
    return { ...event, key: `${words} ${before}` };
  });
}

function makeWait() {
  return h("li", {}, h("i", { class: "busy" }), h("b"), h("span"));
}

function makeEvent(event, fresh) {
  return h(
    "li",
    { class: fresh ? "fresh" : null },
    h("time", { datetime: event.time, text: timeOfDay(event.time) }),
    h("p", {}, event.log_stream ? h("b", { text: `stream ${event.log_stream}` }) : null, h("span", { text: event.message })),
  );
}
