// The gateway's time, whatever this machine's clock says, and one tick a second for every age on the page.

import { Signal } from "./events.js";

let offsetSeconds = 0;

/** Seconds since 1970, as the gateway counts them. */
export function now() {
  return Date.now() / 1000 + offsetSeconds;
}

/**
 * Learn from the `Date` of an answer. It has whole seconds, so a small difference says nothing.
 * @param {string | null} date
 */
export function learn(date) {
  const told = date === null ? NaN : Date.parse(date) / 1000;
  if (Number.isNaN(told)) return;
  const difference = told + 0.5 - Date.now() / 1000;
  if (Math.abs(difference - offsetSeconds) > 2) offsetSeconds = Math.abs(difference) > 2 ? difference : 0;
}

/** Grows by one each second while the page can be seen. */
export const ticks = new Signal(0);

setInterval(() => {
  if (!document.hidden) ticks.set(ticks.value + 1);
}, 1000);
