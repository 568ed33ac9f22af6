// Topology: a table with a row for each log stream, a column for each node, and how the replica is where they meet. With many
// nodes that table would be wide and empty: then the nodes are a list of their own, and a row has its copies side by side.

import { attribute, h, keyed, text } from "./dom.js";
import { bytes, count, latency, plural, span } from "./format.js";

// The tape under a replica runs faster the faster its watermark moves, but never so fast that it blurs.
const TAPE_PX_MAX = 90;
const NODE_COLUMNS_MAX = 6;

export class Topology {
  /** `act(what, stream)`: the user wants to "seal" or "unseal" it. */
  constructor(host, act) {
    this.act = act;
    this.nodes = h("ul", { class: "nodes", "aria-label": "Nodes" });
    this.head = h("tr");
    this.rows = h("tbody");
    this.table = h(
      "table",
      { class: "matrix" },
      h("caption", { class: "hidden", text: "Log streams and their copies" }),
      h("thead", {}, this.head),
      this.rows,
    );
    this.empty = h("p", { class: "empty", text: "No log stream yet. A topic comes with its own." });
    host.append(this.nodes, this.table, this.empty);
  }

  update(status) {
    const topics = new Map(status.topics.map((topic) => [topic.name, topic]));
    const streams = [...status.log_streams].sort(
      (one, other) => String(one.topic).localeCompare(String(other.topic)) || one.log_stream - other.log_stream,
    );
    attribute(this.empty, "hidden", streams.length > 0);
    const many = status.nodes.length > NODE_COLUMNS_MAX;
    const columns = many ? copyColumns(streams) : nodeColumns(status.nodes);
    this.table.style.setProperty("--columns", columns.length);
    attribute(this.nodes, "hidden", !many);
    keyed(this.nodes, many ? status.nodes : [], ({ node }) => node, () => makeNode("li"), updateNode);
    const heads = [{ key: "begin" }, ...columns, { key: "end" }];
    keyed(this.head, heads, ({ key }) => key, makeHead, (element, { node }) => node && updateNode(element, node));
    const rows = [];
    for (const stream of streams) {
      if (rows.at(-1)?.stream?.topic !== stream.topic) rows.push({ topic: topics.get(stream.topic) ?? { name: stream.topic } });
      rows.push({ stream });
    }
    keyed(
      this.rows,
      rows,
      (row) => (row.topic ? `topic ${row.topic.name}` : `stream ${row.stream.log_stream}`),
      (row) => this.makeRow(row),
      (element, row) => this.updateRow(element, row, columns),
    );
  }

  makeRow(row) {
    if (row.topic) return h("tr", { class: "topic-row" }, h("th", { scope: "rowgroup" }, h("b"), h("span")));
    const number = row.stream.log_stream;
    const button = h("button", { class: "quiet act", type: "button", onclick: () => this.act(button.dataset.act, number) });
    const parts = [["i", "glyph"], ["b", null], ["span", "state"], ["span", "epoch"], ["i", "busy"], ["span", "tags"]];
    const name = h("th", { scope: "row" }, ...parts.map(([kind, part]) => h(kind, { class: part })));
    return h("tr", { class: "stream-row" }, name, h("td", { class: "end" }, button));
  }

  updateRow(element, row, columns) {
    if (row.topic) {
      attribute(element.firstChild, "colspan", columns.length + 2);
      text(element.querySelector("b"), row.topic.name);
      text(element.querySelector("span"), row.topic.stopped_reason ? `${row.topic.ordering}, STOPPED` : row.topic.ordering);
      attribute(element, "data-stopped", Boolean(row.topic.stopped_reason));
      return;
    }
    const { stream } = row;
    const by = stream.sealed_by_admin ? " by admin" : "";
    attribute(element, "data-state", stream.state);
    attribute(element, "data-stream", stream.log_stream);
    attribute(element.querySelector(".glyph"), "data-state", stream.state);
    text(element.querySelector("b"), stream.log_stream);
    text(element.querySelector(".state"), `${stream.state}${by}`);
    text(element.querySelector(".epoch"), `, epoch ${stream.epoch}`);
    attribute(element.querySelector(".busy"), "hidden", !stream.waiting_for || stream.sealed_by_admin);
    attribute(element.firstChild, "title", stream.waiting_for || null);
    text(element.querySelector(".tags"), stream.no_redundancy ? "no redundancy" : "");
    updateCells(element, stream, columns);
    const button = element.querySelector(".act");
    // What the manager has sealed it unseals by itself; a chain is changed by a new projection, not by a seal.
    attribute(button, "hidden", stream.ordering === "sequenced" || (stream.state === "sealed" && !stream.sealed_by_admin));
    const act = stream.state === "running" ? "Seal" : "Unseal";
    attribute(button, "data-act", act.toLowerCase());
    attribute(button, "aria-label", `${act} log stream ${stream.log_stream}…`);
    text(button, `${act}…`);
  }
}

/** A column is {key, node, replica(stream)}; `node` is null where it is not about one. */
function nodeColumns(nodes) {
  return nodes.map((node) => ({
    key: `node ${node.node}`,
    node,
    replica: (stream) => stream.replicas.find((replica) => replica.node === node.node) ?? null,
  }));
}

function copyColumns(streams) {
  const copies = Math.max(1, ...streams.map((stream) => stream.replicas.length));
  return Array.from({ length: copies }, (_, i) => ({
    key: `copy ${i + 1}`,
    node: null,
    replica: (stream) => stream.replicas[i] ?? null,
  }));
}

function makeHead({ key, node }) {
  if (node) return makeNode("th");
  const words = { begin: "Log stream", end: "Actions" }[key];
  return h("th", { class: words ? key : "copy", scope: "col" }, h("span", { class: words ? "hidden" : null, text: words ?? key }));
}

function makeNode(name) {
  const parts = [h("i", { class: "glyph" }), h("b"), h("span", { class: "condition" }), h("small"), h("small")];
  return h(name, { scope: name === "th" ? "col" : null }, ...parts);
}

function updateNode(element, node) {
  const state = node.alive ? (node.suspected ? "suspected" : node.slow ? "slow" : "alive") : "unreachable";
  attribute(element, "data-node", node.node);
  attribute(element, "data-state", state);
  attribute(element, "title", [node.address, ...(node.volumes ?? []), ...(node.reason ? [node.reason] : [])].join("\n"));
  const [glyph, name, condition, address, size] = element.children;
  attribute(glyph, "data-state", node.alive ? "running" : "missing");
  text(name, `node ${node.node}`);
  const since = state === "unreachable" && node.unreachable_s >= 1 ? ` ${span(node.unreachable_s)}` : "";
  const pace = state === "slow" ? ` ${latency(node.write_latency_ms)}` : "";
  text(condition, state === "alive" ? "" : state + since + pace);
  text(address, node.address);
  text(size, node.alive ? `${bytes(node.stored_bytes)}, ${plural(node.replica_count ?? 0, "replica")}` : "no answer");
}

function updateCells(row, stream, columns) {
  row.firstElementChild.dataset.key = "begin";
  row.lastElementChild.dataset.key = "end";
  const cells = [{ key: "begin" }, ...columns, { key: "end" }];
  keyed(row, cells, ({ key }) => key, makeCell, (cell, { replica, node }) => {
    if (replica) updateCell(cell, replica(stream), node === null);
  });
}

function makeCell() {
  const parts = ["mark", "behind", "remark", "role"].map((name) => h("span", { class: name }));
  return h(
    "td",
    { class: "replica" },
    h("div", { class: "line" }, h("i", { class: "glyph" }), ...parts),
    h("div", { class: "tape" }),
  );
}

/** `named`: the cell itself says which node it is about. */
function updateCell(cell, replica, named) {
  attribute(cell, "data-node", replica?.node);
  attribute(cell, "data-state", replica ? replica.state : "none");
  attribute(cell, "title", replica ? described(replica) : null);
  if (!replica) return;
  const [{ children: [glyph, number, behind, remark, role] }, tape] = cell.children;
  const mark = replica.state === "missing" ? null : (replica.high_watermark ?? replica.newest_llsn);
  // Nodes report one after the other: a lag that shows only once is the time in between.
  const lag = Math.min(replica.lag_entries ?? 0, Number(cell.dataset.lag ?? 0));
  cell.dataset.lag = replica.lag_entries ?? 0;
  attribute(glyph, "data-state", replica.state);
  text(number, mark === null ? "missing" : count(mark));
  text(behind, lag > 0 ? `−${count(lag)}` : "");
  text(role, named ? `node ${replica.node}, ${words(replica.role)}` : words(replica.role));
  text(remark, remarks(replica).join(", "));
  attribute(tape, "data-empty", mark === 0);
  run(tape, mark);
}

/** A role or a state as people read it. */
function words(name) {
  return name.replaceAll("_", " ");
}

function remarks(replica) {
  const remark = ["running", "serves", "missing", replica.role].includes(replica.state) ? [] : [words(replica.state)];
  if (replica.sync?.state === "in progress") remark.push(`${replica.sync.percent} % from ${replica.sync.source_node}`);
  if (replica.corrupt_entries) remark.push(`${count(replica.corrupt_entries)} damaged`);
  if (replica.disk_full) remark.push("disk full");
  if (replica.evidence) remark.push("evidence");
  return replica.error ? [...remark, replica.error] : remark;
}

function described(replica) {
  const remark = [`Node ${replica.node}, ${words(replica.role)}, ${words(replica.state)}`];
  if (replica.high_watermark !== null) remark.push(`high watermark ${count(replica.high_watermark)}`);
  if (replica.newest_llsn !== null) remark.push(`${plural(replica.newest_llsn, "entry", "entries")}, ${bytes(replica.stored_bytes)}`);
  if (replica.lag_entries) remark.push(`${count(replica.lag_entries)} behind the furthest replica`);
  if (replica.evidence) remark.push(replica.evidence);
  return [...remark, ...remarks(replica)].join("\n");
}

/** Move the tape on by as much as fits to what the watermark has moved. */
function run(tape, mark) {
  const before = tape.dataset.mark === undefined ? mark : Number(tape.dataset.mark);
  if (mark === null) return;
  const moved = Math.max(0, mark - before);
  const offset = Number(tape.dataset.offset ?? 0) + Math.min(TAPE_PX_MAX, 9 * Math.log2(1 + moved));
  tape.dataset.mark = mark;
  tape.dataset.offset = offset;
  tape.style.backgroundPositionX = `${offset.toFixed(1)}px`;
}
