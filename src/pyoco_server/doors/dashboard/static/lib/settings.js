// What the gateway wrote into the page, and what the reader chose for this browser.

/** @typedef {"en" | "ja"} Language */
/** @typedef {"auto" | "light" | "dark"} Theme */

const root = document.documentElement;

/** As the gateway serves it; the same for everybody. */
export const settings = Object.freeze({
  asksForKey: root.dataset.auth === "api_key",
  keyHeader: root.dataset.keyHeader || "X-API-Key",
  readOnly: root.dataset.readOnly === "true",
  version: root.dataset.version || "",
  /** A RUNNING run that was silent for longer is shown as stale. */
  staleSeconds: Number(root.dataset.staleSeconds) || 30,
  /** @type {Language} */
  language: root.lang === "ja" ? "ja" : "en",
});

/**
 * A word kept in this browser. A browser that keeps nothing, as in some private windows, is fine.
 * @param {string} name
 * @returns {string | null}
 */
export function recall(name) {
  try {
    return localStorage.getItem(`pyoco.${name}`);
  } catch {
    return null;
  }
}

/**
 * @param {string} name
 * @param {string | null} value null: forget it
 */
export function remember(name, value) {
  try {
    if (value === null) localStorage.removeItem(`pyoco.${name}`);
    else localStorage.setItem(`pyoco.${name}`, value);
  } catch {
    // Kept for as long as the page is open, then.
  }
}

/** @returns {Language} */
export function chosenLanguage() {
  const word = recall("language");
  return word === "ja" || word === "en" ? word : settings.language;
}

/** @returns {Theme} */
export function chosenTheme() {
  const word = recall("theme");
  return word === "light" || word === "dark" ? word : "auto";
}

/** @param {Theme} theme */
export function applyTheme(theme) {
  if (theme === "auto") delete root.dataset.theme;
  else root.dataset.theme = theme;
}
