// Asking for a run once more, once: sent again after a lost answer, it goes under the same key.

import { Refused, send } from "./api.js";
import { freshKey } from "./once.js";

/** Who asks for the same after this time means it once more. */
const KEPT_MS = 10 * 60 * 1000;
const KEPT_MAX = 2000;

/** @type {Map<string, { body: string, key: string, at: number }>} by run: nobody knows whether they run again */
const unanswered = new Map();

/**
 * @param {string} id
 * @param {string} body with other params, it goes under another key
 * @returns {Promise<any>}
 */
export async function sendAgain(id, body) {
  const before = unanswered.get(id);
  const isSame = before?.body === body && performance.now() - before.at < KEPT_MS;
  const key = isSame ? before.key : freshKey();
  unanswered.delete(id);
  unanswered.set(id, { body, key, at: isSame ? before.at : performance.now() });
  if (unanswered.size > KEPT_MAX) unanswered.delete(/** @type {string} */ (unanswered.keys().next().value));
  try {
    const done = await send("POST", `runs/${encodeURIComponent(id)}/rerun`, body, undefined, key);
    unanswered.delete(id);
    return done;
  } catch (error) {
    if (error instanceof Refused && error.status < 500) unanswered.delete(id); // a plain no; trouble says nothing
    throw error;
  }
}
