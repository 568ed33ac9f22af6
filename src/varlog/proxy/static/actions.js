// Actions: create a topic, seal and unseal a log stream. Each describes what will happen, and asks for confirmation.

import { ask } from "./api.js";
import { confirm, say } from "./dialogs.js";
import { h, text } from "./dom.js";
import { plural } from "./format.js";

export function seal(stream) {
  const number = stream.log_stream;
  confirm({
    title: `Seal log stream ${number}?`,
    what: h(
      "p",
      {},
      "It accepts no appends until an operator unseals it: the manager leaves it sealed. Everything in it stays readable, ",
      "and appends to topic ",
      h("b", { text: stream.topic }),
      ` go to its other log streams, if it has any.`,
    ),
    yes: `Seal log stream ${number}`,
    danger: true,
    perform: async () => {
      await ask(`/v1/log-streams/${number}/seal`, { method: "POST" });
      say(`Log stream ${number} is sealed.`);
    },
  });
}

export function unseal(stream) {
  const number = stream.log_stream;
  confirm({
    title: `Unseal log stream ${number}?`,
    what: h(
      "p",
      {},
      "It accepts appends to topic ",
      h("b", { text: stream.topic }),
      " again, as soon as all of its replicas are identical.",
    ),
    yes: `Unseal log stream ${number}`,
    perform: async () => {
      await ask(`/v1/log-streams/${number}/unseal`, { method: "POST" });
      say(`Log stream ${number} is unsealed.`);
    },
  });
}

/** `nodes`: the number of nodes; `created(name)` is called once the topic exists. */
export function createTopic(nodes, created) {
  const most = Math.max(1, nodes);
  const name = h("input", {
    name: "name",
    required: true,
    pattern: "[A-Za-z0-9][A-Za-z0-9._\\-]{0,99}",
    maxlength: 100,
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "orders",
  });
  const orderings = ["committed", "sequenced"].map((value) => h("option", { value, text: value }));
  const ordering = h("select", { name: "ordering" }, ...orderings);
  const streams = h("input", { name: "streams", type: "number", min: 1, max: 64, value: 2, required: true });
  const replicas = h("input", { name: "replicas", type: "number", min: 1, max: most, value: Math.min(3, most), required: true });
  const summary = h("p", { class: "summary" });
  const update = () => text(summary, summarised(name.value, ordering.value, Number(streams.value), Number(replicas.value)));
  const fields = h(
    "div",
    { class: "fields", oninput: update },
    h("label", { class: "wide" }, h("span", { text: "Name" }), name),
    h("label", { class: "wide" }, h("span", { text: "Ordering" }), ordering),
    h("label", {}, h("span", { text: "Log streams" }), streams),
    h("label", {}, h("span", { text: "Copies of each" }), replicas),
  );
  update();
  confirm({
    title: "New topic",
    what: fields,
    fields: [summary],
    yes: "Create topic",
    perform: async (form) => {
      const body = {
        name: form.get("name"),
        ordering: form.get("ordering"),
        streams: Number(form.get("streams")),
        replicas: Number(form.get("replicas")),
      };
      await ask("/v1/topics", { body });
      say(`Topic ${body.name} was created.`);
      created(body.name);
    },
  });
  name.focus();
}

function summarised(name, ordering, streams, replicas) {
  const how = {
    committed: "An append is acknowledged once it is on the disks of all copies.",
    sequenced: "Positions come from a sequencer, and appends continue with fewer copies when nodes are lost.",
  }[ordering];
  const what = `Creates topic ${name || "…"} with ${plural(streams, "log stream")}, each on ${plural(replicas, "node")}.`;
  return `${what} ${how} The ordering cannot be changed later.`;
}
