// Which dead letters are meant, and how a list of them stays true. No page, no network.

/** @typedef {import("./wire.js").Letter} Letter */
/** @typedef {import("./wire.js").LetterCounts} LetterCounts */
/**
 * What is null is not asked for; an empty flow means letters whose job did not tell its flow.
 * @typedef {object} LetterFilter
 * @property {string | null} reason
 * @property {string | null} flow
 * @property {string | null} tag
 * @property {string | null} run_id
 * @property {string | null} exec       this and the next two: of programs
 * @property {string | null} client_id
 * @property {string | null} group
 */

/** Those that are typed. */
export const TYPED = /** @type {const} */ (["tag", "run_id", "exec", "client_id", "group"]);
/** @type {(keyof LetterFilter)[]} */
export const FILTERS = ["reason", "flow", ...TYPED];

/**
 * From the address of the page, where an empty value counts.
 * @param {URLSearchParams} query
 * @returns {LetterFilter}
 */
export function readFilter(query) {
  const of = (/** @type {string} */ name) => query.get(name) || null;
  return {
    reason: of("reason"), flow: query.has("no_flow") ? "" : of("flow"), tag: of("tag"), run_id: of("run_id"),
    exec: of("exec"), client_id: of("client_id"), group: of("group"),
  };
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
  if (counts === null || TYPED.some((name) => filter[name] !== null)) return null;
  if (filter.reason === null && filter.flow === null) return counts.total;
  return counts.groups
    .filter((group) => filter.reason === null || group.reason === filter.reason)
    .filter((group) => filter.flow === null || (group.flow_name ?? "") === filter.flow)
    .reduce((sum, group) => sum + group.count, 0);
}

/** Beyond this nobody reads on; a filter finds the rest. */
export const LETTERS_MAX = 2000;

/**
 * Letters that follow each other without a gap, the newest first.
 * @typedef {object} Loaded
 * @property {Letter[]} letters
 * @property {boolean} isDeep  whether they reach below the first page: then the cursor is that of the last page
 * @property {boolean} isCut   whether older ones were left off for being too many
 */

/**
 * The first page again, and what was loaded below it before, if that still joins it: after a storm of new letters nobody
 * knows what lies between. What left the first page's span has gone.
 * @param {Letter[]} loaded without a gap, the newest first; none when only the first page was asked for
 * @param {Letter[]} page the newest letters
 * @param {boolean} isAll whether nothing follows the page
 * @param {number} [most]
 * @returns {Loaded}
 */
export function mergePage(loaded, page, isAll, most = LETTERS_MAX) {
  const fresh = newestFirst(page);
  const last = Number(fresh.at(-1)?.id);
  if (isAll || !(Number(loaded[0]?.id) >= last)) return { letters: fresh, isDeep: false, isCut: false };
  return { ...bounded([...fresh, ...loaded.filter((letter) => Number(letter.id) < last)], most), isDeep: true };
}

/**
 * One page more.
 * @param {Letter[]} loaded
 * @param {Letter[]} page what follows them
 * @param {number} [most]
 * @returns {Loaded}
 */
export function addPage(loaded, page, most = LETTERS_MAX) {
  const known = new Set(loaded.map((letter) => letter.id));
  return { ...bounded([...loaded, ...page.filter((letter) => !known.has(letter.id))], most), isDeep: true };
}

/**
 * @param {Letter[]} letters
 * @param {number} most
 */
function bounded(letters, most) {
  return { letters: newestFirst(letters).slice(0, most), isCut: letters.length > most };
}

/**
 * A letter's id is its place in its stream: a later one has a greater number.
 * @param {Letter[]} letters
 */
function newestFirst(letters) {
  return [...letters].sort((a, b) => Number(b.id) - Number(a.id));
}

/**
 * @param {LetterFilter | null} one
 * @param {LetterFilter | null} other
 */
export function isSame(one, other) {
  return one === other || one !== null && other !== null && FILTERS.every((name) => one[name] === other[name]);
}
