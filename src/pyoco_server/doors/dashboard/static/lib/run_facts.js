// What a run says of itself, read with care: it may come from another version, or be odd. No DOM.

/** @typedef {import("./wire.js").Run} Run */

const TERMINAL = new Set(["COMPLETED", "FAILED", "CANCELLED"]);
const DONE = new Set(["SUCCEEDED", "COMPLETED", "FAILED", "CANCELLED", "SKIPPED"]);

/**
 * Nothing will happen to the run any more.
 * @param {string} status
 */
export function isTerminal(status) {
  return TERMINAL.has(status);
}

/**
 * Nothing more will be heard of it: it has ended, or is not stored any more.
 * @param {Run} run
 */
export function isOver(run) {
  return isTerminal(run.status) || run.gone_at !== undefined;
}

/**
 * A value that should be a text, whatever it is.
 * @param {unknown} value
 * @returns {string}
 */
export function textOf(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** They turn the text around them, and what is shown is not what is there. */
const TURNS = /[\u202a-\u202e\u2066-\u2069]/g;

/**
 * A value as JSON, in lines. Characters that turn the direction of a line are escaped: it is the same JSON.
 * @param {unknown} value
 * @returns {string}
 */
export function jsonText(value) {
  const text = JSON.stringify(value, null, 2) ?? "null";
  return text.replace(TURNS, (each) => `\\u${each.charCodeAt(0).toString(16)}`);
}

/** Asked for every ten seconds: older than this, an answer was missed. */
const WORKER_FRESH_SECONDS = 15;

/**
 * Its worker is alive: the last answer said so, and is of just now.
 * @param {Run} run
 * @param {number} now
 */
export function livesSurely(run, now) {
  return run.worker_alive === true && now - (run.worker_told_at ?? 0) <= WORKER_FRESH_SECONDS;
}

/**
 * Of a task.
 * @param {string} state
 */
export function hasEnded(state) {
  return DONE.has(state);
}

/**
 * @param {unknown} value
 * @returns {number | null} seconds since 1970, or nothing that a chart can use
 */
export function instant(value) {
  return typeof value === "number" && Number.isFinite(value) && value > 0 && value < 1e11 ? value : null;
}

/**
 * Every task the run knows of, in the order of the flow.
 * @param {Run} run
 * @returns {string[]}
 */
export function taskNames(run) {
  return [...new Set([run.tasks, run.task_records, run.graph].flatMap((each) => Object.keys(isObject(each) ? each : {})))];
}

/**
 * @param {Run} run
 * @param {string} name
 * @returns {import("./wire.js").TaskRecord | null}
 */
export function recordOf(run, name) {
  const records = run.task_records;
  const found = isObject(records) && Object.hasOwn(records, name) ? records[name] : null;
  return isObject(found) ? /** @type {import("./wire.js").TaskRecord} */ (found) : null;
}

/**
 * A task that a failed run never reached is `NOT_RUN` (CLI-17): it waits for nothing any more.
 * @param {Run} run
 * @param {string} name
 */
export function stateOf(run, name) {
  const told = isObject(run.tasks) && Object.hasOwn(run.tasks, name) ? run.tasks[name] : recordOf(run, name)?.state;
  const state = typeof told === "string" && told !== "" ? told : "PENDING";
  return state === "PENDING" && run.status === "FAILED" ? "NOT_RUN" : state;
}

/**
 * @param {unknown} value
 * @returns {value is Record<string, unknown>}
 */
export function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/**
 * It can neither be stopped nor run again: what becomes of it is decided where its money is.
 * @param {{ kind?: string }} run
 */
export function isPack(run) {
  return run.kind === "pack";
}

/** @param {{ kind?: string }} run */
export function isProgram(run) {
  return run.kind === "exec";
}

/**
 * Nobody has it: it was not taken yet, or handed back. A priced run that was started does not say who has it;
 * a disputed one waits for an operator.
 * @param {Run} run
 */
export function waits(run) {
  if (isPack(run) && run.status !== "PENDING") return run.status === "RUNNING" && run.money_state === "DISPUTED";
  return !run.worker_id && !isOver(run) && (run.status === "PENDING" || run.status === "RUNNING");
}
