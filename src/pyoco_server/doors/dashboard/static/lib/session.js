// The API key: kept for this browser session, sent as a header, and never part of an address.

const NAME = "pyoco.key";
/** @type {string | null} */
let key = recalled();

function recalled() {
  try {
    return sessionStorage.getItem(NAME);
  } catch {
    return null;
  }
}

export function currentKey() {
  return key;
}

/** @param {string} given */
export function useKey(given) {
  key = given;
  try {
    sessionStorage.setItem(NAME, given);
  } catch {
    // Kept until the page is closed or loaded again, then.
  }
}

export function forgetKey() {
  key = null;
  try {
    sessionStorage.removeItem(NAME);
  } catch {
    // Nothing was kept.
  }
}
