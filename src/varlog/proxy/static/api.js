// API: requests to the proxy that served this page. A refusal carries the proxy's problem and its remedy.

const TIMEOUT_MS = 15000;

/** A problem of the proxy (RFC 9457), or a missing answer. */
export class Problem extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `the proxy answered ${status}`);
    this.name = "Problem";
    this.status = status;
    this.title = problem.title || "";
    this.remedy = problem.remedy || "";
    this.facts = problem;
  }
}

/** GET, or POST with a body as JSON; the answer's JSON. */
export async function ask(path, { body, method, signal } = {}) {
  const request = {
    method: method ?? (body === undefined ? "GET" : "POST"),
    headers: { Accept: "application/json" },
    signal: AbortSignal.any([AbortSignal.timeout(TIMEOUT_MS), ...(signal ? [signal] : [])]),
  };
  if (body !== undefined) {
    request.headers["Content-Type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(path, request);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, { title: "No answer", detail: "the proxy gave no answer", remedy: "Is it running? Try again." });
  }
  const text = await answer.text();
  if (!answer.ok) throw new Problem(answer.status, parsed(text) ?? { detail: text.slice(0, 200) });
  return parsed(text);
}

function parsed(text) {
  try {
    return text ? JSON.parse(text) : null;
  } catch {
    return null;
  }
}

/** The path of a topic's resource. */
export function topicPath(topic, rest) {
  return `/v1/topics/${encodeURIComponent(topic)}/${rest}`;
}
