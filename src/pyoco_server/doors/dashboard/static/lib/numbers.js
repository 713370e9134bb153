// Whole numbers of any length, as JSON has them and a browser's numbers do not: above 2^53 those have other digits.

/** JSON's own way of telling and writing the digits of a number. Older browsers have neither. */
const wide = /** @type {{ rawJSON?: (text: string) => unknown }} */ (/** @type {unknown} */ (JSON));

/** Whether this browser keeps every digit; if not, long numbers are rounded as they always were. */
export const keepsDigits = typeof wide.rawJSON === "function";

/** So long that a number may not hold it; a fraction's digits and those within a word of digits do not count. */
const LONG = /(?:^|[^\d.])\d{16}/;
const WHOLE = /^-?\d{16,}$/;

/** A whole number that no number of the browser is equal to. It becomes the same digits again as text and as JSON. */
export class Digits {
  /** @param {string} source */
  constructor(source) {
    this.source = source;
  }

  toString() {
    return this.source;
  }

  toJSON() {
    return wide.rawJSON?.(this.source);
  }
}

/**
 * As `JSON.parse`, with every digit kept. Costs a search through the text more; only a text with a long number is read
 * more slowly. What was read is written with `JSON.stringify`.
 * @param {string} text
 * @returns {any}
 */
export function parseJson(text) {
  return keepsDigits && LONG.test(text) ? JSON.parse(text, /** @type {any} */ (exactly)) : JSON.parse(text);
}

/**
 * As `JSON.parse`, with every number as it was typed: 1.0 and 1e3 are written again as they are.
 * @param {string} text
 * @returns {any}
 */
export function parseTyped(text) {
  return keepsDigits ? JSON.parse(text, /** @type {any} */ (asTyped)) : JSON.parse(text);
}

/**
 * @param {string} _
 * @param {unknown} value
 * @param {{ source?: string } | undefined} context
 */
function asTyped(_, value, context) {
  const source = context?.source;
  return typeof value !== "number" || source === undefined || String(value) === source ? value : new Digits(source);
}

/**
 * @param {string} _
 * @param {unknown} value
 * @param {{ source?: string } | undefined} context
 */
function exactly(_, value, context) {
  const source = context?.source;
  if (typeof value !== "number" || Number.isSafeInteger(value) || source === undefined || !WHOLE.test(source)) return value;
  return String(value) === source ? value : new Digits(source);
}
