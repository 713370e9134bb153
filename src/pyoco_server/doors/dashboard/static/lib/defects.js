// A defect of the page is not kept from its reader, nor from the console.

import { t } from "./i18n.js";
import { isTrouble } from "./poll.js";
import { toast } from "./toast.js";

/** The same defect at every turn of a poll is told once in a while. */
const AGAIN_MS = 60_000;
const KEPT_MAX = 50;

/** @type {Map<string, number>} */
const toldAt = new Map();

/** Called once. Nothing is prevented: the console gets every one of them, as always. */
export function tellDefects() {
  addEventListener("error", (event) => {
    // An image that does not come, and a layout that took two passes, are no defects.
    if (!(event instanceof ErrorEvent) || event.message.startsWith("ResizeObserver loop")) return;
    tell(event.message);
  });
  addEventListener("unhandledrejection", (event) => {
    if (!isTrouble(event.reason)) tell(String(event.reason));
  });
}

/** @param {string} what */
function tell(what) {
  const key = what.slice(0, 200);
  const at = performance.now();
  if (at - (toldAt.get(key) ?? -Infinity) < AGAIN_MS) return;
  if (toldAt.size >= KEPT_MAX) toldAt.clear();
  toldAt.set(key, at);
  toast(t("view.defect"), "danger");
}
