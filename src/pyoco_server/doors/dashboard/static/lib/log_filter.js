// The filter of a log, and its forms in requests and in the page's address. No DOM.

/**
 * @typedef {object} LogFilter
 * @property {string | null} task     `-` selects lines without a task
 * @property {number | null} attempt  null: all attempts
 * @property {string | null} level    the lowest level shown
 * @property {string[]} streams       empty: all streams
 * @property {string} search
 */
/**
 * Log state shared by the sections of a run's page.
 * @typedef {object} LogPlace
 * @property {import("./events.js").Signal<LogFilter>} logFilter
 * @property {import("./events.js").Signal<number>} logJump  incremented to scroll to the last matching lines
 */

export const LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"];
export const STREAMS = ["stdout", "stderr", "log"];
/** The gateway's limit. */
export const SEARCH_MAX = 200;
export const NO_TASK = "-";

/** @type {Readonly<LogFilter>} */
export const everything = Object.freeze({ task: null, attempt: null, level: null, streams: [], search: "" });

/** @param {LogFilter} filter */
export function isEverything(filter) {
  return queryOf(filter).length === 0;
}

/**
 * Query parameters for the gateway. A stream filter always includes `system`, so that gaps stay visible.
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
 * Query parameters for the page's address.
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
 * The inverse of `placeOf`. Invalid values are ignored: addresses may be typed, or come from another version.
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
 * Scroll to the last lines that match `wanted`.
 * @param {LogPlace} place
 * @param {Partial<LogFilter>} wanted
 */
export function jumpToLog(place, wanted) {
  place.logFilter.set({ ...everything, ...wanted });
  place.logJump.set(place.logJump.value + 1);
}
