// A browser opens six connections to a server, for all of its pages together. A few of them may be held for long; the
// rest stay free for questions, and for the next page.

import { freshKey } from "./once.js";
import { recall, remember } from "./settings.js";

/** @typedef {() => void} GiveBack */

const SLOTS = ["stream.0", "stream.1", "stream.2"];

/**
 * A place for one stream among all pages of this browser.
 * @returns {Promise<GiveBack | null>} null: all are taken; ask again later
 */
export async function takeSlot() {
  for (const name of SLOTS) {
    // Locks end with their page, however it ends. Only a page that came over TLS or from this machine has them.
    const given = await (navigator.locks ? locked(`pyoco.${name}`) : leased(name));
    if (given !== null) return given;
  }
  return null;
}

/**
 * @param {string} name
 * @returns {Promise<GiveBack | null>}
 */
function locked(name) {
  return new Promise((resolve) => {
    const held = navigator.locks.request(name, { ifAvailable: true }, (lock) => {
      if (lock === null) return resolve(null);
      return new Promise((end) => resolve(() => end(undefined)));
    });
    held.catch(() => resolve(null)); // a page that is just being left, or one that may not
  });
}

const RENEW_MS = 2000;
/** A page that ended without a word, or stood still for this long, has lost its place. */
const LEASE_MS = 7000;
/** Two that take the same place at once see after this time whose name stands there. */
const SETTLE_MS = 60;

/**
 * Without locks: a name and a time that others see. Two pages may hold one place for a moment; nothing breaks by that.
 * @param {string} name
 * @returns {Promise<GiveBack | null>}
 */
async function leased(name) {
  const me = freshKey();
  const [, since = "0"] = (recall(name) ?? "").split(" ");
  if (Math.abs(Date.now() - Number(since)) < LEASE_MS) return null;
  const isMine = () => recall(name)?.startsWith(me) === true;
  const renew = () => remember(name, `${me} ${Date.now()}`);
  renew();
  await new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
  if (!isMine()) return null; // also in a browser that keeps nothing
  const timer = setInterval(() => {
    // A page that stood still for too long has been replaced: it leaves the place to whoever has it now.
    if (recall(name) === null || isMine()) renew();
    else clearInterval(timer);
  }, RENEW_MS);
  const giveBack = () => {
    clearInterval(timer);
    removeEventListener("pagehide", giveBack);
    if (isMine()) remember(name, null);
  };
  addEventListener("pagehide", giveBack);
  return giveBack;
}
