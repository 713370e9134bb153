// Lists that somebody wants to come back to: a name and a filter, kept in this browser.

import { recall, remember } from "./settings.js";

/** @typedef {{ name: string, query: string }} SavedView */

const PLACE = "runs.views";
export const VIEWS_MAX = 50;
export const NAME_MAX = 80;

/** @returns {SavedView[]} what cannot be read is passed over: another version of this page may have written it */
export function savedViews() {
  let found;
  try {
    found = JSON.parse(recall(PLACE) ?? "[]");
  } catch {
    return [];
  }
  if (!Array.isArray(found)) return [];
  return found.filter((each) => typeof each?.name === "string" && typeof each?.query === "string").slice(0, VIEWS_MAX);
}

/**
 * The same name again replaces what it meant.
 * @param {SavedView} view
 */
export function saveView(view) {
  const name = view.name.slice(0, NAME_MAX);
  const others = savedViews().filter((each) => each.name !== name);
  remember(PLACE, JSON.stringify([...others, { name, query: view.query }].slice(-VIEWS_MAX)));
}

/** @param {string} name */
export function forgetView(name) {
  remember(PLACE, JSON.stringify(savedViews().filter((each) => each.name !== name)));
}
