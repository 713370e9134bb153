// Every word on the page comes from two dictionaries with the same keys.

import { en, ja } from "../texts/index.js";
import { chosenLanguage } from "./settings.js";

/** @typedef {import("./settings.js").Language} Language */
/** @typedef {keyof typeof en} TextKey */

const dictionaries = { en, ja };
/** @type {Language} */
let current = chosenLanguage();

export function language() {
  return current;
}

/** @param {Language} chosen */
export function speak(chosen) {
  current = chosen;
  document.documentElement.lang = chosen;
}

/**
 * A text, with `{name}` replaced by what is given. The result is text; nothing in it is ever read as markup. With 1 for
 * `{n}`, a text of the same key with the suffix `_one` is used instead, if there is one.
 * @param {TextKey} key
 * @param {Record<string, string | number>} [facts]
 * @returns {string}
 */
export function t(key, facts = {}) {
  const one = /** @type {TextKey} */ (`${key}_one`);
  const text = dictionaries[current][String(facts.n) === "1" && one in en ? one : key];
  return text.replace(/\{(\w+)\}/g, (whole, name) => String(facts[name] ?? whole));
}

/**
 * For values that the gateway may know and this page may not: the word for it, or the value itself.
 * @param {string} prefix
 * @param {string} value
 * @param {Record<string, string | number>} [facts]
 * @returns {string}
 */
export function wordFor(prefix, value, facts) {
  const key = `${prefix}.${value}`;
  return key in en ? t(/** @type {TextKey} */ (key), facts) : value;
}

/**
 * The sentence of an answer that comes in both languages.
 * @param {{ message?: string, message_ja?: string }} told
 */
export function sentence(told) {
  return (current === "ja" ? told.message_ja : told.message) ?? told.message ?? "";
}
