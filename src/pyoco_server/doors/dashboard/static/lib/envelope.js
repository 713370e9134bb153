// What a pack left, read with care: every word of it is somebody else's. No DOM.

import { isObject, textOf } from "./run_facts.js";

/**
 * A file beside an envelope.
 * @typedef {object} FileFacts
 * @property {string} name
 * @property {number | null} size in bytes
 * @property {string} sha256
 * @property {string} kind its content type
 */
/** A piece of a page that was read: as it is, doubtful, or not readable. @typedef {{ text: string, kind: "plain" | "doubt" | "unreadable" }} Piece */

/** They are seen as nothing, or turn the text around them: what is shown would not be what is there. */
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;

/**
 * A text in which nothing is hidden: what has no shape is written out. Lines and tabs stay.
 * @param {unknown} value
 */
export function plain(value) {
  return textOf(value).replaceAll("\r\n", "\n")
    .replace(UNSEEN, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

const ADDRESS_MAX = 4096;
const WEB = /^https?:$/;
/** Where a gateway serves results itself. */
const OWN = "/v1/results/";

/**
 * An address that may become a link: of the web, and without a user's name in it, which only misleads.
 * @param {unknown} value
 * @returns {string | null}
 */
export function webAddress(value) {
  if (typeof value !== "string" || value.length > ADDRESS_MAX || !/^https?:[/]{2}/i.test(value)) return null;
  try {
    const url = new URL(value);
    return WEB.test(url.protocol) && url.username === "" && url.password === "" ? url.href : null;
  } catch {
    return null;
  }
}

/**
 * Where a signed address leads from this page. One of the gateway's own is taken from where the page came from: behind
 * a proxy the gateway knows neither its scheme nor its path.
 * @param {unknown} signed
 * @param {string} page the page's address
 * @returns {{ href: string, isOwn: boolean } | null}
 */
export function signedAddress(signed, page) {
  if (typeof signed !== "string" || signed === "") return null;
  const base = new URL(".", page.replace(/[?#].*$/s, ""));
  try {
    const url = new URL(signed, base);
    if (!WEB.test(url.protocol)) return null;
    if (url.pathname.startsWith(OWN) && url.hostname === base.hostname) return { href: new URL(url.pathname.slice(1), base).href, isOwn: true };
    return { href: url.href, isOwn: false };
  } catch {
    return null;
  }
}

/**
 * The name of the file in which a member of the data lies that was too large.
 * @param {unknown} value
 * @returns {string | null}
 */
export function movedTo(value) {
  if (!isObject(value) || Object.keys(value).length !== 1) return null;
  return typeof value.$artifact === "string" ? value.$artifact : null;
}

/**
 * @param {unknown} envelope
 * @returns {FileFacts[]}
 */
export function filesOf(envelope) {
  const told = isObject(envelope) && isObject(envelope.artifacts) ? envelope.artifacts : {};
  return Object.entries(told).map(([name, value]) => {
    const facts = isObject(value) ? value : {};
    const size = facts.bytes;
    return {
      name, sha256: textOf(facts.sha256), kind: textOf(facts.content_type),
      size: typeof size === "number" && Number.isFinite(size) && size >= 0 ? size : null,
    };
  });
}

/**
 * A share of 1.
 * @param {unknown} value
 * @returns {number | null}
 */
export function share(value) {
  const number = typeof value === "string" && /^\d(\.\d{1,9})?$/.test(value) ? Number(value) : value;
  return typeof number === "number" && number >= 0 && number <= 1 ? number : null;
}

/**
 * Those that failed first, each part in its own order. O(n).
 * @param {unknown[]} results
 */
export function failedFirst(results) {
  const passed = (/** @type {unknown} */ each) => isObject(each) && each.passed === true;
  return [...results.filter((each) => !passed(each)), ...results.filter(passed)];
}

const MARKS = /(\[□\]|\(\?\))/;
/** Where words are not parted by spaces, this much before the sign is meant at most. */
const DOUBT_MAX = 24;

/**
 * A text that was read from a picture, in pieces: `(?)` stands after a doubtful word, `[□]` in place of an unreadable
 * one. All of it is there, in its order. O(length).
 * @param {string} text
 * @returns {Piece[]}
 */
export function piecesOf(text) {
  /** @type {Piece[]} */
  const pieces = [];
  for (const part of text.split(MARKS)) {
    if (part === "[□]") {
      pieces.push({ text: part, kind: "unreadable" });
    } else if (part === "(?)") {
      const before = pieces.at(-1);
      const word = before?.kind === "plain" ? lastWord(before.text) : "";
      if (before && word !== "") before.text = before.text.slice(0, before.text.length - word.length);
      if (before?.text === "") pieces.pop();
      pieces.push({ text: `${word}(?)`, kind: "doubt" });
    } else if (part !== "") {
      pieces.push({ text: part, kind: "plain" });
    }
  }
  return pieces;
}

/** @param {string} text */
function lastWord(text) {
  const letters = [...text.slice(-2 * DOUBT_MAX)].slice(-DOUBT_MAX); // not through the middle of one
  const at = letters.findLastIndex((letter) => /\s/.test(letter));
  return letters.slice(at + 1).join("");
}
