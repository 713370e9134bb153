// Which runs a list shows: as a part of the address, as a question to the gateway, as a command for a terminal.

import { shellWord } from "./parts.js";
import { href } from "./router.js";

/**
 * @typedef {object} RunFilter
 * @property {string} [q]  words that have to occur in it
 * @property {string} [status]
 * @property {string} [flow]
 * @property {string} [tag]
 * @property {string} [kind]
 * @property {string} [workflow_yaml_sha256]
 * @property {string} [run_id]  how the id begins
 * @property {string} [exec]  this and the next three: of programs
 * @property {string} [client_id]
 * @property {string} [group]
 * @property {string} [job_id]
 */
/** @typedef {keyof RunFilter} FilterName */

export const STATUSES = ["PENDING", "RUNNING", "CANCELLING", "COMPLETED", "FAILED", "CANCELLED"];
export const KINDS = ["flow", "exec", "pack"];
/** The states that a request to stop leads out of. */
export const OPEN_STATUSES = ["PENDING", "RUNNING"];

/** @type {FilterName[]} */
export const FILTER_NAMES = ["q", "status", "flow", "tag", "kind", "workflow_yaml_sha256", "run_id", "exec", "client_id", "group", "job_id"];
/** What only programs have. @type {FilterName[]} */
export const PROGRAM_FILTERS = ["exec", "client_id", "group", "job_id"];
const CHARACTERS_MAX = 512;

/**
 * @param {URLSearchParams} query whatever else is in it is passed over
 * @returns {RunFilter}
 */
export function readFilter(query) {
  /** @type {RunFilter} */
  const filter = {};
  for (const name of FILTER_NAMES) {
    const value = query.get(name)?.trim().slice(0, CHARACTERS_MAX);
    if (value) filter[name] = value;
  }
  return filter;
}

/**
 * The filter in one form: two that say the same are the same text.
 * @param {RunFilter} filter
 */
export function filterText(filter) {
  return new URLSearchParams(FILTER_NAMES.flatMap((name) => (filter[name] ? [[name, filter[name]]] : []))).toString();
}

/**
 * The list that is narrowed down to it.
 * @param {RunFilter} filter
 */
export function filterHref(filter) {
  return href("runs", [], new URLSearchParams(filterText(filter)));
}

/**
 * What of a filter a run cannot leave. A run changes its status and nothing else of these: asked without the status,
 * the gateway also tells of the runs that have just left it.
 * @param {RunFilter} filter
 * @returns {RunFilter}
 */
export function lastingPart(filter) {
  const { status: _status, ...rest } = filter;
  return rest;
}

/**
 * Another value of one member. What cannot be together goes: a program has a flow's name, and no other kind has clients.
 * @param {RunFilter} filter
 * @param {FilterName} name
 * @param {string | undefined} value undefined: any
 * @returns {RunFilter}
 */
export function withFilter(filter, name, value) {
  const next = { ...filter };
  delete next[name];
  if (name === "exec") delete next.flow;
  if (name === "flow") delete next.exec;
  if (name === "kind" && value !== "exec") for (const each of PROGRAM_FILTERS) delete next[each];
  if (value) next[name] = value;
  return next;
}

/**
 * Whether it is programs that somebody looks for.
 * @param {RunFilter} filter
 */
export function isOfPrograms(filter) {
  return filter.kind === "exec" || PROGRAM_FILTERS.some((name) => filter[name] !== undefined);
}

/**
 * The body of `POST /runs/cancel` for all that the filter shows; null when there is none: what has ended cannot be
 * cancelled, nor can priced runs, and runs are not cancelled by what they are searched for, how their id begins, nor by client, group or job.
 * @param {RunFilter} filter
 * @param {number} submittedBefore what comes in while we ask is not meant
 */
export function cancelBody(filter, submittedBefore) {
  const { q: words, run_id: prefix, exec, client_id: client, group, job_id: job, ...rest } = filter;
  if (exec !== undefined) rest.flow = `exec:${exec}`;
  if (filter.kind === "pack" || [words, prefix, client, group, job].some((each) => each !== undefined) || (filter.status !== undefined && !OPEN_STATUSES.includes(filter.status))) return null;
  const whole = Object.keys(rest).length === 0;
  return { ...rest, ...(whole ? { all: true } : {}), submitted_before: submittedBefore, limit: 1000 };
}

/** @type {Record<FilterName, string>} */
const OPTIONS = {
  status: "--status", flow: "--flow", tag: "--tag", kind: "--kind", workflow_yaml_sha256: "--workflow-yaml-sha256",
  q: "--search", run_id: "--run-id", exec: "--exec", client_id: "--client-id", group: "--group", job_id: "--job-id",
};

/**
 * The same list in a terminal.
 * @param {RunFilter} filter
 */
export function listCommand(filter) {
  const options = FILTER_NAMES.flatMap((name) => {
    const option = OPTIONS[name];
    return filter[name] ? [option, shellWord(filter[name])] : [];
  });
  return ["pyoco-client list", ...options, "--output table"].join(" ");
}

const WHOLE_ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;
const PART_OF_ID = /^[0-9a-f-]{4,36}$/i;

/**
 * @param {string} text what somebody typed or pasted into the search
 * @returns {"whole" | "part" | null} null: cannot be the beginning of an id
 */
export function idForm(text) {
  if (WHOLE_ID.test(text)) return "whole";
  return PART_OF_ID.test(text) ? "part" : null;
}
