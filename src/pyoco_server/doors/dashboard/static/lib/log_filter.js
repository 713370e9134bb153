// Which lines of a log are wanted, as the gateway is asked for them and as the address of the page keeps it. No DOM.

/**
 * @typedef {object} LogFilter
 * @property {string | null} task     `-`: lines of no task
 * @property {number | null} attempt  null: all of them
 * @property {string | null} level    and above
 * @property {string[]} streams       none: all of them
 * @property {string} search
 */
/**
 * What the sections of a run's page share about its log.
 * @typedef {object} LogPlace
 * @property {import("./events.js").Signal<LogFilter>} logFilter
 * @property {import("./events.js").Signal<number>} logJump  changes when somebody wants to see the last of these lines
 */

export const LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"];
export const STREAMS = ["stdout", "stderr", "log"];
/** Of the gateway. */
export const SEARCH_MAX = 200;
export const NO_TASK = "-";

/** @type {Readonly<LogFilter>} */
export const everything = Object.freeze({ task: null, attempt: null, level: null, streams: [], search: "" });

/** @param {LogFilter} filter */
export function isEverything(filter) {
  return queryOf(filter).length === 0;
}

/**
 * For the gateway. With a choice of streams the system's are asked for, too: those lines say where others are missing.
 * @param {LogFilter} filter
 * @returns {[string, string][]}
 */
export function queryOf(filter) {
  /** @type {[string, string][]} */
  const query = [];
  if (filter.task !== null) query.push(["task", filter.task]);
  if (filter.attempt !== null) query.push(["attempt", String(filter.attempt)]);
  if (filter.level !== null) query.push(["level", filter.level]);
  if (filter.search !== "") query.push(["search", filter.search]);
  if (filter.streams.length > 0) query.push(...[...filter.streams, "system"].map((each) => /** @type {[string, string]} */ (["stream", each])));
  return query;
}

/**
 * For the address of the page.
 * @param {LogFilter} filter
 * @returns {Record<string, string | null>}
 */
export function placeOf(filter) {
  return {
    log_task: filter.task, log_attempt: filter.attempt === null ? null : String(filter.attempt), log_level: filter.level,
    log_stream: filter.streams.join(",") || null, log_search: filter.search || null,
  };
}

/**
 * What is not understood is left out: it may have been typed, or be of another version.
 * @param {URLSearchParams} query
 * @returns {LogFilter}
 */
export function readPlaceOf(query) {
  const attempt = query.get("log_attempt") ?? "";
  const level = query.get("log_level");
  return {
    task: query.get("log_task") || null,
    attempt: /^[1-9]\d{0,6}$/.test(attempt) ? Number(attempt) : null,
    level: level !== null && LEVELS.includes(level) ? level : null,
    streams: STREAMS.filter((each) => (query.get("log_stream") ?? "").split(",").includes(each)),
    search: [...(query.get("log_search") ?? "")].slice(0, SEARCH_MAX).join(""),
  };
}

/**
 * Go to the last lines of a task, or of everything.
 * @param {LogPlace} place
 * @param {Partial<LogFilter>} wanted
 */
export function jumpToLog(place, wanted) {
  place.logFilter.set({ ...everything, ...wanted });
  place.logJump.set(place.logJump.value + 1);
}
