// Dashboard: passes each status to the parts of the page, and user actions to their handlers.

import * as actions from "./actions.js";
import { Events } from "./events.js";
import { open } from "./dialogs.js";
import { attribute, find, h, keyed, text } from "./dom.js";
import { Entries } from "./entries.js";
import { span } from "./format.js";
import { problems, sentence, worst } from "./health.js";
import { History } from "./history.js";
import { Inspector, parse } from "./inspector.js";
import { Live } from "./live.js";
import { sampled, Tiles } from "./tiles.js";
import { Topics } from "./topics.js";
import { Topology } from "./topology.js";

// After this long without a status the page says that what it shows is old.
const SILENT_MS = 3500;
const HEALED_SHOWN_MS = 12000;
const PROBLEMS_MAX = 5;

let status = null;
let statusAt = performance.now();
let trouble = null; // {since, healed}: the last time that something was wrong, by this browser's clock
let chosen = null;
let named = location.hash;

const history = new History();
const tiles = new Tiles(find("#charts"), history);
const topology = new Topology(find("#topology .body"), (what, number) => {
  const stream = status?.log_streams.find((found) => found.log_stream === number);
  if (stream) actions[what](stream);
});
const events = new Events(find("#events .body"));
const inspector = new Inspector(
  (topic) => status?.topics.find((found) => found.name === topic) ?? { oldest: 1, newest: null },
  (topic, position) => topic === null ? forget() : remember(topic, position),
);
const read = (topic, position) => inspector.show(topic, position);
const entries = new Entries(find("#entries .body"), read);
const topics = new Topics(find("#topics .body"), choose, read);
const picker = find("#topic");

// --- status -----------------------------------------------------------------------------------------------------------------

function update(newest) {
  status = newest;
  statusAt = performance.now();
  const found = problems(newest);
  history.add({ time: Date.now() / 1000, level: worst(found), values: sampled(newest) });
  text(find("#cluster"), `cluster ${newest.cluster}`);
  drawHealth(found);
  tiles.update(newest);
  topology.update(newest);
  events.update(newest);
  updateTopics(newest);
}

function updateTopics(newest) {
  const names = newest.topics.map((topic) => topic.name).sort((one, other) => one.localeCompare(other));
  keyed(picker, names, (name) => name, (name) => h("option", { value: name, text: name }));
  picker.hidden = names.length === 0;
  const wanted = place();
  if (wanted.topic !== chosen && names.includes(wanted.topic)) go(wanted); // it may have been created just now
  else if (!names.includes(chosen)) choose(busiest(newest) ?? null);
  topics.update(newest, chosen);
  const topic = newest.topics.find((one) => one.name === chosen);
  if (topic) entries.update(topic);
}

function busiest(newest) {
  return [...newest.topics].sort((one, other) => (other.newest ?? 0) - (one.newest ?? 0))[0]?.name;
}

function drawHealth(found) {
  const level = worst(found);
  const ill = level === "bad" || level === "warn";
  attribute(document.documentElement, "data-health", level);
  document.title = ill ? `● varlog: ${found[0].what}` : "varlog";
  if (ill) trouble ??= { since: performance.now() };
  else if (trouble && !trouble.healed) Object.assign(trouble, { healed: performance.now() });
  if (trouble?.healed && performance.now() - trouble.healed > HEALED_SHOWN_MS) trouble = null;
  if (ill && trouble.healed) trouble = { since: performance.now() };
  if (level === "ok" && trouble) {
    const took = span(Math.max(1, (trouble.healed - trouble.since) / 1000));
    showHealth("healed", `Healed: everything runs again, after ${took}`);
  } else {
    showHealth(level, sentence(status, found));
  }
  drawProblems(found.slice(1));
}

function showHealth(level, words) {
  attribute(find("#health"), "data-level", level);
  text(find("#health span"), words);
}

/** All but the worst, which is in the top line. */
function drawProblems(found) {
  const host = find("#problems");
  host.hidden = found.length === 0;
  const listed = found.slice(0, PROBLEMS_MAX);
  if (found.length > listed.length) listed.push({ level: found.at(-1).level, what: `and ${found.length - listed.length} more` });
  keyed(find("ul", host), listed, (one) => one.what.replace(/\d+ (s|min|h|d)$/, ""), makeProblem, (element, one) => {
    attribute(element, "data-level", one.level);
    text(element.lastChild, one.what);
  });
}

function makeProblem() {
  return h("li", {}, h("i", { class: "glyph", "aria-hidden": "true" }), h("span"));
}

/** No status for long: the page is out of date, and looks like it. */
function drawSilence(why) {
  const silent = performance.now() - statusAt;
  attribute(document.body, "data-stale", silent > SILENT_MS ? true : null);
  if (silent <= SILENT_MS) return;
  attribute(document.documentElement, "data-health", "silent");
  showHealth("bad", why ?? `No answer from the proxy for ${span(silent / 1000)}; trying again`);
}

let refusal = null; // why the proxy, which answers, has no status
const live = new Live(() => "/v1/status/events", {
  status: (newest) => {
    refusal = null;
    update(newest);
  },
  problem: (problem) => (refusal = problem.detail),
});
setInterval(() => drawSilence(refusal), 500);

// --- user actions ------------------------------------------------------------------------------------------------------------

function choose(topic) {
  chosen = topic;
  if (topic === null) return;
  picker.value = topic;
  entries.show(topic);
  if (!inspector.dialog) remember(topic, null);
  if (status) topics.update(status, chosen);
  const mark = status?.topics.find((one) => one.name === topic);
  if (mark) entries.update(mark);
}

/** The address names what is shown, so that it can be shared: #orders/42 */
function remember(topic, position) {
  named = topic === null ? "" : `#${encodeURIComponent(topic)}${position ? `/${position}` : ""}`;
  if (location.hash !== named) window.history.replaceState(null, "", named || location.pathname);
}

/** No entry is shown any more. An address typed in the meantime is kept: `hashchange` handles it. */
function forget() {
  if (location.hash === named) remember(chosen, null);
}

function place() {
  const [topic, position] = location.hash.slice(1).split("/").map(decodeURIComponent);
  return { topic: topic || null, position: /^\d+$/.test(position ?? "") ? Number(position) : null };
}

addEventListener("hashchange", () => {
  if (status?.topics.some((found) => found.name === place().topic)) go(place());
});

function go({ topic, position }) {
  choose(topic);
  if (position) read(topic, position);
}

picker.addEventListener("change", () => choose(picker.value));
find("#create").addEventListener("click", () => {
  actions.createTopic(status?.nodes.length ?? 1, (name) => (location.hash = encodeURIComponent(name)));
});

const field = find("#position");
find("#find").addEventListener("submit", (event) => {
  event.preventDefault();
  try {
    const { topic, position } = parse(field.value, status?.topics ?? [], chosen);
    field.setCustomValidity("");
    field.value = "";
    if (topic !== chosen) choose(topic);
    read(topic, position);
  } catch (error) {
    field.setCustomValidity(error.message);
    field.reportValidity();
  }
});
field.addEventListener("input", () => field.setCustomValidity(""));
// The field regains the focus after an entry was shown: the shortcut key must not be typed into it.
field.addEventListener("keydown", (event) => event.key === "/" && !field.value && event.preventDefault());

const KEYS = [
  ["/", "go to a position", () => field.focus()],
  ["p", "pause or resume the entries", () => find("#pause").click()],
  ["n", "create a topic", () => find("#create").click()],
  ["d", "light, dark, or the system setting", () => find("#theme").click()],
  ["?", "this list", showKeys],
];

function showKeys() {
  const more = [
    ["← →", "the entry before and the next; in a chart, earlier and later"],
    ["Esc", "close what is open"],
  ];
  const rows = [...KEYS, ...more].flatMap(([key, what]) => [h("dt", {}, h("kbd", { text: key })), h("dd", { text: what })]);
  open("confirm", "Keyboard", h("h2", { text: "Keyboard" }), h("dl", { class: "keys" }, ...rows));
}

find("#help").addEventListener("click", showKeys);
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
  const found = KEYS.find(([key]) => key === event.key);
  if (!found || document.querySelector("dialog[open]")) return;
  event.preventDefault();
  found[2]();
});

document.addEventListener("visibilitychange", () => entries.hide(document.hidden));
addEventListener("pagehide", () => {
  live.close();
  entries.stop();
});
addEventListener("pageshow", (event) => event.persisted && location.reload());
