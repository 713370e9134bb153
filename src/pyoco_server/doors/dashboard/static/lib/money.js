// Money, from whole micros of a dollar: no fraction of the browser's comes near it. No DOM.

import { language } from "./i18n.js";

const DIGITS = 6;
/** As many as amounts have everywhere else; more only where there is something in them. */
const SHOWN = 4;

/**
 * @param {unknown} value
 * @returns {bigint | null} null: this is no amount
 */
export function micros(value) {
  if (typeof value === "bigint") return value;
  if (typeof value === "number") return Number.isSafeInteger(value) ? BigInt(value) : null;
  const text = typeof value === "object" && value !== null ? String(value) : ""; // digits that no number holds
  return /^-?\d{1,30}$/.test(text) ? BigInt(text) : null;
}

/**
 * $1,234.5000; every digit that is not zero is shown.
 * @param {unknown} value micros
 */
export function usd(value) {
  const amount = micros(value);
  if (amount === null) return "–";
  const digits = String(amount < 0n ? -amount : amount).padStart(DIGITS + 1, "0");
  const whole = new Intl.NumberFormat(language()).format(BigInt(digits.slice(0, -DIGITS)));
  const rest = digits.slice(-DIGITS).replace(new RegExp(`0{1,${DIGITS - SHOWN}}$`), "");
  return `${amount < 0n ? "−" : ""}$${whole}.${rest}`;
}

/**
 * The same with its sign, for what was added or taken; a dash for nothing.
 * @param {unknown} value micros
 */
export function change(value) {
  const amount = micros(value);
  if (amount === 0n) return "–";
  return amount !== null && amount > 0n ? `+${usd(value)}` : usd(value);
}

/**
 * Ticks of an axis, in micros: steps of 1, 2 or 5 in their place, and none below what is shown.
 * @param {number} top
 * @param {number} [most] steps
 */
export function moneyTicks(top, most = 4) {
  const high = Number.isFinite(top) && top > 0 ? top : 10_000;
  let step = 100;
  for (let place = 1; high / step > most; place += 1) step = [1, 2, 5][place % 3] * 100 * 10 ** Math.floor(place / 3);
  const steps = Math.max(1, Math.ceil(high / step));
  return Array.from({ length: steps + 1 }, (_, place) => place * step);
}
