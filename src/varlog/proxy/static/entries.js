// Entries: the newest of one topic as they arrive, newest first; older ones on demand. A fast topic is sampled, not followed.

import { ask, topicPath } from "./api.js";
import { attribute, find, h, keyed, text } from "./dom.js";
import { count, dateAndTime, milliseconds, short, timeOfDay } from "./format.js";
import { Live } from "./live.js";
import { line } from "./payload.js";

const SHOWN = 60;
const OLDER = 60;
const KEPT_MAX = 1000;
// Too many entries per second to read: above the first rate only the newest are fetched, once per second; below the other they
// are followed again.
const SAMPLE_ABOVE_S = 150;
const FOLLOW_BELOW_S = 75;
// What arrives is lit up for a moment, unless everything would be lit all the time.
const LIT_BELOW_S = 8;

export class Entries {
  /** `read(topic, position)`: that entry is to be shown in full. */
  constructor(host, read) {
    Object.assign(this, { read, topic: null, entries: [], paused: false, sampling: false, live: null, mark: null, turn: 0 });
    this.pace = find("#pace");
    this.rows = h("tbody");
    this.older = h("button", { class: "quiet older", type: "button", text: "Older entries", onclick: () => this.fetchOlder() });
    this.table = h(
      "table",
      { class: "tail" },
      h("caption", { class: "hidden", text: "Newest entries, newest first" }),
      h("thead", {}, h("tr", {}, ...["position", "stream", "time", "data"].map((name) => h("th", { scope: "col", text: name })))),
      this.rows,
    );
    this.empty = h("div", { class: "empty" });
    host.append(this.table, this.older, this.empty);
    this.rows.addEventListener("click", (event) => {
      if (getSelection()?.toString()) return; // text is being selected, not an entry
      const row = event.target.closest("tr");
      if (row) this.read(this.topic, Number(row.dataset.key));
    });
    this.pauseButton = find("#pause");
    this.pauseButton.addEventListener("click", () => this.pause(!this.paused));
  }

  show(topic) {
    if (topic === this.topic) return;
    this.stop();
    Object.assign(this, { topic, entries: [], sampling: false, mark: null });
    if (this.paused) this.pause(false);
    else this.follow();
    this.draw();
  }

  /** A hidden page is not read, and a browser has few connections per server. */
  hide(hidden) {
    if (this.topic === null || this.paused) return;
    this.stop();
    if (!hidden && !this.sampling) this.follow();
  }

  stop() {
    this.live?.close();
    this.live = null;
    this.turn += 1; // answers to older requests are ignored
  }

  pause(paused) {
    this.paused = paused;
    attribute(this.pauseButton, "aria-pressed", String(paused));
    text(this.pauseButton, paused ? "Resume" : "Pause");
    this.stop();
    if (!paused && this.topic !== null) {
      this.entries = this.entries.slice(0, SHOWN);
      this.follow();
    }
    this.draw();
  }

  /** Every second: what the status says of this topic. */
  update(topic) {
    this.mark = topic;
    const speed = topic.append_entries_per_s ?? 0;
    if (!this.paused && !document.hidden) {
      if (!this.sampling && speed > SAMPLE_ABOVE_S) {
        this.stop();
        this.sampling = true;
      } else if (this.sampling && speed < FOLLOW_BELOW_S) {
        this.sampling = false;
        this.follow();
      }
      if (this.sampling) this.sample();
    }
    this.showPace(speed);
    this.drawEdges();
  }

  follow() {
    const { turn, topic } = this;
    // Where to resume, or the last few: what arrived while the page was hidden is not fetched entry by entry.
    const from = () => {
      const last = this.entries[0]?.glsn;
      const newest = this.mark?.newest ?? null;
      return last !== undefined && newest !== null && newest - last < SHOWN ? last + 1 : -SHOWN;
    };
    this.live = new Live(() => topicPath(topic, `events?from=${from()}&skip_trimmed=true`), {
      message: (entry) => turn === this.turn && this.add([entry], true),
    });
  }

  async sample() {
    const { topic, turn } = this;
    const newest = this.mark.newest;
    if (newest === null || this.asking) return;
    this.asking = true;
    try {
      const from = Math.max(this.mark.oldest, newest - SHOWN + 1);
      const page = await ask(topicPath(topic, `entries?from=${from}&limit=${SHOWN}`));
      if (turn === this.turn) this.add(page.entries, false);
    } catch {
      // The next second tries again, and the top of the page says what is wrong.
    } finally {
      this.asking = false;
    }
  }

  async fetchOlder() {
    const { topic } = this;
    this.pause(true);
    const { turn } = this;
    const last = this.entries.at(-1)?.glsn ?? (this.mark?.newest ?? 0) + 1;
    const from = Math.max(this.mark?.oldest ?? 1, last - OLDER);
    if (from >= last) return;
    this.older.disabled = true;
    try {
      const page = await ask(topicPath(topic, `entries?from=${from}&until=${last}&limit=${OLDER}`));
      if (turn !== this.turn) return;
      this.entries = [...this.entries, ...page.entries.reverse()].slice(0, KEPT_MAX);
      this.draw();
    } catch (error) {
      text(this.pace, error.message);
    } finally {
      this.older.disabled = false;
    }
  }

  /** Entries in log order. Known ones are skipped. */
  add(entries, fresh) {
    const last = this.entries[0]?.glsn ?? 0;
    const lit = last > 0 && (this.mark?.append_entries_per_s ?? 0) < LIT_BELOW_S;
    const added = entries.filter((entry) => entry.glsn > last).map((entry) => ({ ...entry, fresh: fresh && lit }));
    if (!added.length) return;
    this.entries = [...added.reverse(), ...this.entries].slice(0, SHOWN);
    if (this.scheduled) return; // many events of one moment are drawn at once
    this.scheduled = requestAnimationFrame(() => {
      this.scheduled = null;
      this.draw();
    });
  }

  draw() {
    keyed(this.rows, this.entries, (entry) => entry.glsn, makeRow);
    this.drawEdges();
  }

  drawEdges() {
    const nothing = this.entries.length === 0;
    attribute(this.table, "hidden", nothing);
    const known = this.mark !== null && this.mark.newest !== null && this.mark.newest < this.mark.oldest;
    attribute(this.empty, "hidden", !nothing || !known);
    const oldest = this.mark?.oldest ?? 1;
    attribute(this.older, "hidden", nothing || (this.entries.at(-1)?.glsn ?? 0) <= oldest);
    if (nothing && this.empty.dataset.topic !== this.topic) this.drawEmpty();
  }

  drawEmpty() {
    this.empty.dataset.topic = this.topic ?? "";
    const command = `curl -d 'hello' -H 'Content-Type: text/plain' ${location.origin}${topicPath(this.topic ?? "", "entries")}`;
    const words = "Nothing here yet. Append something, and it shows at once:";
    this.empty.replaceChildren(h("p", { text: words }), h("pre", {}, h("code", { text: command })));
  }

  showPace(speed) {
    attribute(this.pace, "data-live", this.paused || this.topic === null ? null : true);
    if (this.paused) {
      const missed = (this.mark?.newest ?? 0) - (this.entries[0]?.glsn ?? 0);
      text(this.pace, missed > 0 ? `paused, ${count(missed)} newer` : "paused");
    } else {
      text(this.pace, this.sampling ? `${short(speed)}/s, the newest of each second` : "live");
    }
  }
}

function makeRow(entry) {
  const label = `Read position ${entry.glsn}`;
  const position = h("button", { class: "at", type: "button", text: count(entry.glsn), "aria-label": label });
  const time = h("time", { datetime: entry.timestamp, title: dateAndTime(entry.timestamp), text: timeOfDay(entry.timestamp) });
  time.append(h("i", { text: milliseconds(entry.timestamp) }));
  return h(
    "tr",
    { class: entry.fresh ? "fresh" : null },
    h("td", { class: "position" }, position),
    h("td", { class: "stream", text: entry.log_stream }),
    h("td", { class: "time" }, time),
    h("td", { class: "data" }, h("div", {}, ...line(entry))),
  );
}
