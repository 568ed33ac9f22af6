// Inspector: one entry in full, found by its position, and from there to the next and the one before.

import { ask, topicPath } from "./api.js";
import { open, sentence } from "./dialogs.js";
import { h } from "./dom.js";
import { bytes, count, dateAndTime } from "./format.js";
import { whole } from "./payload.js";

/** The typed text as {topic, position}: "12", "12,345", "#12", "orders/12", "oldest", "newest", "-10" (before the newest). */
export function parse(typed, topics, chosen) {
  const [, before, place] = /^\s*(?:(.*)[/ ])?\s*(.*?)\s*$/.exec(typed);
  const name = before?.trim() || chosen;
  const topic = topics.find((found) => found.name === name);
  if (!topic) throw new Error(name ? `there is no topic ${name}` : "there is no topic yet");
  if (place === "oldest") return { topic: name, position: topic.oldest ?? 1 };
  if (place === "newest") return { topic: name, position: Math.max(1, topic.newest ?? 1) };
  const digits = place.replace(/^#/, "").replace(/[,_' ]/g, "");
  if (!/^-?\d{1,15}$/.test(digits)) {
    throw new Error(`${place || "nothing"} is no position: try 42, ${name}/42, oldest, newest or -10`);
  }
  const number = Number(digits);
  return { topic: name, position: number > 0 ? number : Math.max(1, (topic.newest ?? 1) + number) };
}

export class Inspector {
  /** `ends(topic)`: {oldest, newest} as known now; `moved(topic, position)`: what is being looked at, or null. */
  constructor(ends, moved) {
    Object.assign(this, { ends, moved, dialog: null, turn: 0 });
  }

  async show(topic, position) {
    this.topic = topic;
    this.position = position;
    if (!this.dialog?.open) this.build();
    this.moved(topic, position);
    this.drawHead();
    const turn = ++this.turn;
    try {
      const entry = await ask(topicPath(topic, `entries/${position}`));
      if (turn === this.turn) this.drawEntry(entry);
    } catch (problem) {
      if (turn === this.turn) this.drawProblem(problem);
    }
  }

  build() {
    this.title = h("h2");
    this.previous = tool("←", "Previous entry", () => this.step(-1));
    this.next = tool("→", "Next entry", () => this.step(1));
    const close = tool("×", "Close", () => dialog.close());
    this.content = h("div", { class: "content", "aria-live": "polite", tabindex: -1, autofocus: true });
    const dialog = open("inspector", "One entry", h("header", {}, this.title, this.previous, this.next, close), this.content);
    dialog.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step) this.step(step);
    });
    // Browsers report a close some time after it: by then the next entry may be open, and is left alone.
    dialog.addEventListener("close", () => {
      if (this.dialog !== dialog) return;
      this.dialog = null;
      this.turn += 1;
      this.moved(null, null);
    });
    this.dialog = dialog;
  }

  step(by) {
    const position = this.position + by;
    if (position >= 1) this.show(this.topic, position);
  }

  drawHead() {
    this.title.replaceChildren(`${this.topic} `, h("b", { text: count(this.position) }));
    const { oldest, newest } = this.ends(this.topic);
    this.previous.disabled = this.position <= (oldest ?? 1);
    this.next.disabled = newest !== null && this.position >= newest;
  }

  drawEntry(entry) {
    const { kind, size, nodes } = whole(entry);
    const address = topicPath(this.topic, `entries/${entry.glsn}`);
    const facts = [
      ["position", count(entry.glsn)],
      ["log stream", `${entry.log_stream}, entry ${count(entry.llsn)}`],
      ["appended", dateAndTime(entry.timestamp)],
      ["data", [kind === "json" ? "JSON" : kind, size === null ? "" : bytes(size)].filter(Boolean).join(", ")],
    ];
    // Browsers have a clipboard only on pages that came over TLS or from this machine.
    const copy = h("button", { class: "quiet", type: "button", text: "Copy", hidden: !navigator.clipboard, onclick: async () => {
      await navigator.clipboard.writeText(this.content.querySelector("pre").textContent);
      copy.textContent = "Copied";
    } });
    this.content.replaceChildren(
      h("dl", {}, ...facts.flatMap(([name, value]) => [h("dt", { text: name }), h("dd", { text: value })])),
      h("div", { class: "bar" }, h("a", { href: address, target: "_blank", rel: "noopener", text: "As JSON from the API" }), copy),
      h("pre", { class: kind, tabindex: 0 }, h("code", {}, ...nodes)),
    );
  }

  drawProblem(problem) {
    const remedy = problem.remedy ? h("p", { text: problem.remedy }) : null;
    const words = h("p", {}, h("b", { text: sentence(problem.message) }));
    this.content.replaceChildren(h("div", { class: "refusal" }, words, remedy));
  }
}

function tool(sign, name, onclick) {
  return h("button", { class: "tool", type: "button", text: sign, title: name, "aria-label": name, onclick });
}
