// Which dead letters are meant, and how a list of them stays true. No page, no network.

/** @typedef {import("./wire.js").Letter} Letter */
/** @typedef {import("./wire.js").LetterCounts} LetterCounts */
/**
 * What is null is not asked for; an empty flow means letters whose job did not tell its flow.
 * @typedef {{ reason: string | null, flow: string | null, tag: string | null, run_id: string | null }} LetterFilter
 */

/** @type {(keyof LetterFilter)[]} */
export const FILTERS = ["reason", "flow", "tag", "run_id"];

/**
 * From the address of the page, where an empty value counts.
 * @param {URLSearchParams} query
 * @returns {LetterFilter}
 */
export function readFilter(query) {
  const of = (/** @type {string} */ name) => query.get(name) || null;
  return { reason: of("reason"), flow: query.has("no_flow") ? "" : of("flow"), tag: of("tag"), run_id: of("run_id") };
}

/**
 * For the address of the page, where empty values are left out.
 * @param {LetterFilter} filter
 * @returns {Record<string, string | null>}
 */
export function placeOf(filter) {
  return { ...filter, no_flow: filter.flow === "" ? "1" : null };
}

/**
 * What is set, as the gateway takes it.
 * @param {LetterFilter} filter
 * @returns {Record<string, string>}
 */
export function given(filter) {
  const entries = FILTERS.map((name) => /** @type {const} */ ([name, filter[name]]));
  return Object.fromEntries(/** @type {[string, string][]} */ (entries.filter(([, value]) => value !== null)));
}

/**
 * A path with its query. Unlike elsewhere an empty value is sent: an empty flow is a filter, and without it every letter
 * would be meant.
 * @param {LetterFilter} filter
 * @param {Record<string, string | number | boolean | null>} [more]
 */
export function letterPath(filter, more = {}) {
  const kept = Object.entries({ ...given(filter), ...more }).filter(([, value]) => value !== null);
  const text = new URLSearchParams(kept.map(([name, value]) => [name, String(value)])).toString();
  return text === "" ? "dlq" : `dlq?${text}`;
}

/**
 * How many letters a filter means, as far as the counts can tell.
 * @param {LetterFilter} filter
 * @param {LetterCounts | null} counts
 * @returns {number | null}
 */
export function countOf(filter, counts) {
  if (counts === null || filter.tag !== null || filter.run_id !== null) return null;
  if (filter.reason === null && filter.flow === null) return counts.total;
  return counts.groups
    .filter((group) => filter.reason === null || group.reason === filter.reason)
    .filter((group) => filter.flow === null || (group.flow_name ?? "") === filter.flow)
    .reduce((sum, group) => sum + group.count, 0);
}

/**
 * The first page again, and what was loaded below it before. What left the first page's span has gone.
 * @param {Letter[]} loaded
 * @param {Letter[]} page the newest letters, newest first
 * @param {boolean} isAll whether nothing follows the page
 */
export function mergePage(loaded, page, isAll) {
  const last = page.at(-1);
  if (isAll || last === undefined) return page;
  return [...page, ...loaded.filter((letter) => Number(letter.id) < Number(last.id))];
}
