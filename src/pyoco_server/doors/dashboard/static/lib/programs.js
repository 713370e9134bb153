// What can be told of programs by looking at what the gateway says of them. No page, no network.

import { list, whole } from "./fleet.js";
import { isObject, textOf } from "./run_facts.js";

/** @typedef {import("./wire.js").Run} Run */
/** @typedef {import("./wire.js").ExecGroup} ExecGroup */

const FLOW = "exec:";

/**
 * The program that a flow's name means; null: it is a flow.
 * @param {unknown} flow
 * @returns {string | null}
 */
export function programOf(flow) {
  return typeof flow === "string" && flow.startsWith(FLOW) ? flow.slice(FLOW.length) : null;
}

/**
 * Arguments as they were typed: one in each line, as it is. The last line break ends a line and begins none.
 * @param {string} text
 * @returns {string[]}
 */
export function readArguments(text) {
  const lines = text.split(/\r\n|\r|\n/);
  if (lines.at(-1) === "") lines.pop();
  return lines;
}

/** A job's id of our own: sent again after a lost answer, it is the same job. Works without TLS, too. */
export function freshJobId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = ((bytes[6] ?? 0) & 0x0f) | 0x40;
  bytes[8] = ((bytes[8] ?? 0) & 0x3f) | 0x80;
  const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

/**
 * What a program was asked for with, whatever a stranger has written there.
 * @param {Run} run
 * @returns {{ args: string[], files: { name: string, size: number | null, sha256: string }[], timeout: number | null }}
 */
export function askedOf(run) {
  const params = isObject(run.params) ? run.params : {};
  const files = Array.isArray(params.files) ? params.files.filter(isObject) : [];
  return {
    args: Array.isArray(params.args) ? params.args.map(textOf) : [],
    files: files.map((each) => ({
      name: textOf(each.name), size: typeof each.size === "number" ? each.size : null, sha256: textOf(each.sha256),
    })),
    timeout: typeof params.timeout_sec === "number" ? params.timeout_sec : null,
  };
}

/**
 * How large a file is that the program has left; null: it has left none of this name.
 * @param {Run} run
 * @param {string} name
 * @returns {number | null}
 */
export function leftBytes(run, name) {
  const found = Array.isArray(run.artifacts) ? run.artifacts.filter(isObject).find((each) => each.name === name) : undefined;
  return found === undefined ? null : whole(found.size);
}

/**
 * The groups of `GET /exec/state`, by name.
 * @param {unknown} answer
 * @returns {Map<string, ExecGroup>}
 */
export function groupsOf(answer) {
  const groups = isObject(answer) && isObject(answer.groups) ? answer.groups : {};
  return new Map(Object.entries(groups).filter(([, each]) => isObject(each)).map(([name, each]) => [name, /** @type {ExecGroup} */ (each)]));
}

/**
 * A member of a group that has an entry for each name.
 * @template T
 * @param {Record<string, T> | undefined} members
 * @returns {[string, T][]}
 */
export function entries(members) {
  return isObject(members) ? /** @type {[string, T][]} */ (Object.entries(members)) : [];
}

const ASSIGNED = "job.assign.";

/**
 * The programs that live workers of a group offer by name, and how many workers each. A pattern names no program.
 * @param {ExecGroup | undefined} group
 * @returns {Map<string, number>}
 */
export function offeredIn(group) {
  /** @type {Map<string, number>} */
  const offered = new Map();
  for (const worker of list(group?.workers)) {
    for (const pattern of new Set(list(worker.patterns).map(textOf))) {
      const name = pattern.startsWith(ASSIGNED) ? pattern.slice(ASSIGNED.length) : "";
      if (/^[\w-]{1,64}$/.test(name)) offered.set(name, (offered.get(name) ?? 0) + 1);
    }
  }
  return offered;
}

/** @typedef {{ labels: Record<string, string>, value: number }} Sample */

const LINE = /^pyoco_exec_(\w+?)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/**
 * The figures of programs in a text for Prometheus, by their names without the prefix; buckets are left out. O(text)
 * @param {string} text
 * @returns {Map<string, Sample[]>}
 */
export function readFigures(text) {
  /** @type {Map<string, Sample[]>} */
  const found = new Map();
  for (const line of text.split("\n")) {
    const [, name = "", labels = "", value = ""] = LINE.exec(line) ?? [];
    if (name === "" || name.endsWith("_bucket") || name.endsWith("_created")) continue;
    const sample = {
      labels: Object.fromEntries([...labels.matchAll(LABEL)].map(([, label = "", word = ""]) => [label, unescaped(word)])),
      value: Number(value),
    };
    found.set(name, [...(found.get(name) ?? []), sample]);
  }
  return found;
}

/** @param {string} word */
function unescaped(word) {
  return word.replace(/\\(.)/g, (_, each) => (each === "n" ? "\n" : each));
}
