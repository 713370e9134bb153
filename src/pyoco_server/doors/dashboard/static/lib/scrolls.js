// How far down the page one was, for the way back: a view fills itself after it was opened, when the browser's own
// memory has given up already.

/** Where to stop waiting for the page to be as long as it was. */
const SETTLE_MS = 2000;
const PLACES_MAX = 200;

/**
 * What this module needs of the Navigation API, which not every browser has: without it one arrives at the top.
 * @typedef {object} Navigations
 * @property {{ key: string } | null} currentEntry
 * @property {(type: "navigate", listener: (event: { navigationType: string }) => void) => void} addEventListener
 */

class Scrolls {
  constructor() {
    /** @type {Map<string, number>} by entry of the history */
    this.tops = new Map();
    this.isReturn = false;
    /** @type {Navigations | undefined} */
    this.navigation = /** @type {any} */ (globalThis).navigation;
    this.stop = () => {};
    if (this.navigation === undefined) return;
    history.scrollRestoration = "manual"; // two that restore would be one too many
    this.navigation.addEventListener("navigate", (event) => this.leave(event.navigationType));
  }

  /** @param {string} kind */
  leave(kind) {
    const key = this.navigation?.currentEntry?.key;
    if (key !== undefined && kind !== "replace") this.tops.set(key, scrollY);
    if (this.tops.size > PLACES_MAX) this.tops.delete(/** @type {string} */ (this.tops.keys().next().value));
    this.isReturn = kind === "traverse";
  }

  /** Somebody else looks from here on. */
  forget() {
    this.stop();
    this.tops.clear();
  }

  /** A view was opened: at its top, or where one was when one comes back to it. */
  arrive() {
    const key = this.isReturn ? this.navigation?.currentEntry?.key : undefined;
    this.settleAt((key === undefined ? undefined : this.tops.get(key)) ?? 0);
  }

  /**
   * Go there as soon as the page is long enough, unless the reader moves first.
   * @param {number} top
   */
  settleAt(top) {
    this.stop();
    scrollTo(0, top);
    if (top === 0 || isThere(top)) return;
    const stopping = new AbortController();
    const observer = new ResizeObserver(() => {
      scrollTo(0, top);
      if (isThere(top)) this.stop();
    });
    const timer = setTimeout(() => this.stop(), SETTLE_MS);
    this.stop = () => {
      observer.disconnect();
      clearTimeout(timer);
      stopping.abort();
    };
    for (const kind of ["wheel", "touchstart", "keydown", "pointerdown"]) {
      addEventListener(kind, () => this.stop(), { signal: stopping.signal, passive: true });
    }
    observer.observe(document.body);
  }
}

/** @param {number} top */
function isThere(top) {
  return Math.abs(scrollY - top) < 2;
}

export const scrolls = new Scrolls();
