// Where one is, as the part of the address behind `#`: it can be copied, kept and gone back to, and never reaches a log.

/**
 * @typedef {object} Place
 * @property {string} panel
 * @property {string[]} rest        what follows the panel: the id of a run
 * @property {URLSearchParams} query
 */

/**
 * @param {string} hash
 * @param {string} home
 * @returns {Place}
 */
export function readPlace(hash, home) {
  const [, path = "", query = ""] = /^#?\/?([^?]*)\??(.*)$/s.exec(hash) ?? [];
  const parts = path.split("/").map(decoded).filter((part) => part !== "");
  return { panel: parts[0] ?? home, rest: parts.slice(1), query: new URLSearchParams(query) };
}

/**
 * @param {string} panel
 * @param {string[]} [rest]
 * @param {Record<string, string | null | undefined> | URLSearchParams} [query] empty values are left out
 */
export function href(panel, rest = [], query = {}) {
  const entries = query instanceof URLSearchParams ? [...query] : Object.entries(query);
  const kept = entries.filter(([, value]) => value !== null && value !== undefined && value !== "");
  const path = [panel, ...rest].map(encodeURIComponent).join("/");
  const text = new URLSearchParams(/** @type {[string, string][]} */ (kept)).toString();
  return `#/${path}${text === "" ? "" : `?${text}`}`;
}

/** @param {string} part */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a lone percent sign, typed by hand
  }
}
