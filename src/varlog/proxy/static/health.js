// Health: what is wrong in a status, worst first, in words. A pure function of the status: no page, no clock.

import { latency, plural, span } from "./format.js";

export const LEVELS = ["ok", "note", "warn", "bad"];

/** [{level, what}], worst first; a deliberate action of an operator is a note, never an alarm. */
export function problems(status) {
  const found = [
    ...status.topics.filter((topic) => topic.stopped_reason).map(ofTopic),
    ...status.nodes.flatMap(ofNode),
    ...stopped(status.log_streams),
    ...status.log_streams.flatMap(ofStream),
    ...(status.repository_errors ?? []).map((what) => ({ level: "warn", what: `Metadata repository: ${what}` })),
    ...(status.manager ? [] : [{ level: "warn", what: "There is no manager: nothing is repaired until one is started" }]),
  ];
  return found.sort((one, other) => LEVELS.indexOf(other.level) - LEVELS.indexOf(one.level));
}

export function worst(found) {
  return found.length ? found[0].level : "ok";
}

/** One sentence for the top of the page. */
export function sentence(status, found) {
  if (found.length) return found[0].what;
  const nodes = plural(status.nodes.length, "node");
  const streams = status.log_streams.length;
  if (!streams) return `${nodes}, no log stream yet`;
  return `All well: ${nodes}, ${plural(streams, "log stream")} running`;
}

/** Nothing is ordered in it until an operator acts: why, and with which command. */
function ofTopic(topic) {
  return { level: "bad", what: `Topic ${topic.name} is STOPPED: ${topic.stopped_reason}. ${topic.remedy}` };
}

function ofNode(node) {
  const foreign = node.foreign_log_streams ?? [];
  const found = [];
  if (!node.alive) {
    const since = node.unreachable_s >= 1 ? ` for ${span(node.unreachable_s)}` : "";
    // A node that answers, and belongs elsewhere, is not simply unreachable: the reason has the remedy.
    if (node.reason?.includes("cluster with UUID")) return [{ level: "bad", what: `Node ${node.node} is not of this cluster: ${node.reason}` }];
    return [{ level: "bad", what: `Node ${node.node} is unreachable${since}` }];
  }
  if (node.suspected) found.push({ level: "warn", what: `Node ${node.node} does not answer a client` });
  if (node.slow) found.push({ level: "warn", what: `Node ${node.node} is slow: its disk takes ${latency(node.write_latency_ms)} for a write` });
  if (foreign.length) found.push({ level: "note", what: `Node ${node.node} has data of another cluster: ${plural(foreign.length, "replica")}, left as they are` });
  return found;
}

/** Streams that accept no appends; those that wait for the same thing in one sentence. */
function stopped(streams) {
  const groups = new Map();
  for (const stream of streams) {
    if (stream.state === "running" || stream.sealed_by_admin) continue;
    groups.set(stream.waiting_for, [...(groups.get(stream.waiting_for) ?? []), stream.log_stream]);
  }
  return [...groups].map(([wait, numbers]) => {
    const who = numbers.length === 1 ? `Log stream ${numbers[0]} takes` : `Log streams ${numbers.join(", ")} take`;
    return { level: "bad", what: `${who} no appends${wait ? `: ${wait}` : ""}` };
  });
}

function ofStream(stream) {
  const name = `Log stream ${stream.log_stream}`;
  const found = [];
  if (stream.state !== "running" && stream.sealed_by_admin) found.push({ level: "note", what: `${name} is sealed by admin` });
  if (stream.no_redundancy) found.push({ level: "bad", what: `${name} has a single copy left` });
  for (const replica of stream.replicas) found.push(...ofReplica(name, stream, replica));
  return found;
}

function ofReplica(name, stream, replica) {
  const where = `${name} on node ${replica.node}`;
  if (replica.evidence) return [{ level: "bad", what: `${where} contradicts the metadata repository and is left as it is: ${replica.evidence}` }];
  if (replica.state === "frozen") return [{ level: "bad", what: `${where} is frozen` }];
  const found = [];
  if (replica.corrupt_entries) found.push({ level: "warn", what: `${where}: ${plural(replica.corrupt_entries, "entry", "entries")} damaged` });
  if (replica.disk_full) found.push({ level: "warn", what: `${where}: its disk is full` });
  if (replica.error) found.push({ level: "warn", what: `${where}: ${replica.error}` });
  if (stream.state === "running" && !["running", "serves", "missing"].includes(replica.state)) {
    found.push({ level: "warn", what: `${where} is ${replica.state}` });
  }
  return found;
}
