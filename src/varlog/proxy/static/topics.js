// Topics: each as a tape from its oldest to its newest position, with a pin where each of its named readers is.

import { attribute, h, keyed, text } from "./dom.js";
import { count, NOTHING, plural, short, span } from "./format.js";

export class Topics {
  /** `choose(topic)`: its entries are to be shown. `go(topic, position)`: that entry is to be read. */
  constructor(host, choose, go) {
    Object.assign(this, { choose, go, chosen: null });
    this.list = h("ul", { class: "topic-list" });
    this.empty = h("p", { class: "empty", text: "No topic yet." });
    host.append(this.list, this.empty);
  }

  update(status, chosen) {
    attribute(this.empty, "hidden", status.topics.length > 0);
    const topics = [...status.topics].sort((one, other) => one.name.localeCompare(other.name));
    keyed(this.list, topics, (topic) => topic.name, (topic) => this.make(topic), (element, topic) => {
      const readers = status.readers.filter((reader) => reader.topic === topic.name);
      this.updateTopic(element, topic, readers, topic.name === chosen);
    });
  }

  make(topic) {
    const name = h("button", { class: "name", type: "button", text: topic.name, onclick: () => this.choose(topic.name) });
    return h(
      "li",
      {},
      h("div", { class: "title" }, name, h("span", { class: "kind" }), h("span", { class: "speed" })),
      h("div", { class: "ends" }, h("span", { class: "oldest" }), h("span", { class: "newest" })),
      h("p", { class: "stopped", role: "alert" }, h("b"), h("span"), h("code")),
      h("ul", { class: "readers", "aria-label": `Named readers of ${topic.name}` }),
    );
  }

  updateTopic(element, topic, readers, chosen) {
    attribute(element, "class", chosen ? "topic chosen" : "topic");
    const [title, ends, stopped, list] = element.children;
    attribute(stopped, "hidden", !topic.stopped_reason);
    if (topic.stopped_reason) {
      const [word, why, command] = stopped.children;
      text(word, "STOPPED: nothing is ordered here");
      text(why, `${topic.stopped_reason}. Start all storage nodes; if it stays stopped:`);
      text(command, `varlog topic adopt-order ${topic.name}`);
    }
    attribute(title.children[0], "aria-pressed", String(chosen));
    text(title.children[1], `${topic.ordering}, ${plural(topic.log_stream_ids.length, "stream")}`);
    text(title.children[2], topic.append_entries_per_s ? `${short(topic.append_entries_per_s)}/s` : "");
    const empty = topic.newest !== null && topic.newest < topic.oldest;
    attribute(ends, "data-trimmed", topic.oldest > topic.first);
    attribute(ends, "title", topic.oldest > topic.first ? `trimmed below ${count(topic.oldest)}` : null);
    text(ends.children[0], empty ? "empty" : count(topic.oldest));
    text(ends.children[1], empty ? "" : count(topic.newest));
    attribute(list, "hidden", readers.length === 0);
    const make = (reader) => this.makeReader(topic, reader);
    keyed(list, readers, (reader) => reader.name, make, (item, reader) => updateReader(item, topic, reader));
  }

  makeReader(topic, { name }) {
    const onclick = () => this.go(topic.name, Number(button.dataset.position));
    const button = h("button", { class: "pin", type: "button", onclick });
    return h(
      "li",
      {},
      h("span", { class: "who", text: name, title: name }),
      h("span", { class: "lag" }),
      h("div", { class: "way", "aria-hidden": "true" }, h("i", { class: "done" })),
      h("span", { class: "where" }, button, h("span")),
    );
  }
}

function updateReader(element, topic, reader) {
  const [, lag, way, where] = element.children;
  const begin = topic.oldest ?? 1;
  const length = Math.max(1, (topic.newest ?? reader.position) - begin + 1);
  const share = Math.max(0, Math.min(1, (reader.position - begin + 1) / length));
  attribute(element, "data-level", level(reader));
  text(lag, reader.lag_entries === null ? NOTHING : reader.lag_entries === 0 ? "up to date" : `${count(reader.lag_entries)} behind`);
  way.firstChild.style.transform = `scaleX(${share.toFixed(4)})`;
  const button = where.firstChild;
  attribute(button, "data-position", reader.position);
  attribute(button, "aria-label", `Read position ${count(reader.position)} of ${topic.name}, where ${reader.name} is`);
  attribute(button, "disabled", reader.position < begin);
  text(button, `at ${count(reader.position)}`);
  text(where.lastChild, reader.age_s < 1.5 ? "updated just now" : `updated ${span(reader.age_s)} ago`);
}

/** Behind and silent is worth a look; behind and moving is a reader at work. */
function level(reader) {
  return reader.lag_entries > 0 && reader.age_s > 30 ? "warn" : "ok";
}
