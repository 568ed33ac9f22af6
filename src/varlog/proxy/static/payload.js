// Payload: the data of an entry for people: as one line, as indented JSON with syntax colours, as text, as bytes.

import { h } from "./dom.js";

const LINE_MAX = 400;
const HEX_MAX = 4096;
const PARTS = /("(?:[^"\\]|\\.)*"\s*:)|("(?:[^"\\]|\\.)*")|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|\b(true|false|null)\b/g;
const KINDS = ["key", "string", "number", "word"];

/** What is shown: {kind: "json" | "text" | "bytes", value}. Text that is a JSON object or list is shown as one. */
export function payload(entry) {
  if (entry.encoding === "json") return { kind: "json", value: entry.data };
  if (entry.encoding === "base64") return { kind: "bytes", value: decoded(entry.data) };
  const value = String(entry.data);
  if (/^\s*[[{]/.test(value)) {
    try {
      return { kind: "json", value: JSON.parse(value), source: value };
    } catch {
      // Only looked like JSON.
    }
  }
  return { kind: "text", value };
}

/** One line of it, as elements. */
export function line(entry) {
  const { kind, value, source } = payload(entry);
  if (kind === "bytes") {
    const shown = [...value.subarray(0, 48)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    return [h("i", { class: "hex", text: shown + (value.length > 48 ? " …" : "") })];
  }
  if (kind === "json") return parts(cut(source ?? JSON.stringify(value)));
  const shown = cut(value);
  return shown ? [shown.replace(/\s*\n\s*/g, " ⏎ ")] : [h("i", { class: "hex", text: "(empty)" })];
}

/** All of it. */
export function whole(entry) {
  const { kind, value } = payload(entry);
  if (kind === "json") return { kind, size: null, nodes: parts(JSON.stringify(value, null, 2)) };
  if (kind === "text") return { kind, size: new TextEncoder().encode(value).length, nodes: [value] };
  return { kind, size: value.length, nodes: [dump(value)] };
}

function cut(value) {
  return value.length > LINE_MAX ? `${value.slice(0, LINE_MAX)} …` : value;
}

/** JSON's text in pieces, each with a class for its colour. */
function parts(source) {
  const nodes = [];
  let end = 0;
  for (const match of source.matchAll(PARTS)) {
    if (match.index > end) nodes.push(source.slice(end, match.index));
    nodes.push(h("span", { class: KINDS[match.slice(1).findIndex((group) => group !== undefined)], text: match[0] }));
    end = match.index + match[0].length;
  }
  if (end < source.length) nodes.push(source.slice(end));
  return nodes;
}

function decoded(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

/** Sixteen bytes a line: offset, hexadecimal, and what of it is text. */
function dump(bytes) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, HEX_MAX); at += 16) {
    const row = [...bytes.subarray(at, at + 16)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const ascii = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex.padEnd(47)}  ${ascii}`);
  }
  if (bytes.length > HEX_MAX) lines.push(`… ${bytes.length - HEX_MAX} more bytes`);
  return lines.join("\n");
}
