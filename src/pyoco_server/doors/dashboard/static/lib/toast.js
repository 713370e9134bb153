// A short word on what happened, which leaves by itself and is read aloud.

import { h } from "./dom.js";
import { t } from "./i18n.js";
import { icon } from "./icons.js";

const SECONDS = 6;
const region = h("div", { class: "toasts", role: "status", "aria-live": "polite" });

/** @returns {HTMLElement} to be put into the page once */
export function toastRegion() {
  return region;
}

/** Nobody is to read what was told before. */
export function forgetToasts() {
  region.replaceChildren();
}

/**
 * @param {string} text
 * @param {"plain" | "warning" | "danger"} [level]
 * @param {string} [href] where it leads
 * @param {string} [purpose] it takes the place of the one before that had the same
 */
export function toast(text, level = "plain", href, purpose) {
  const close = h("button", { type: "button", class: "button icon-only quiet", "aria-label": t("close") }, icon("close"));
  const words = href === undefined ? h("span", null, text) : h("a", { href }, text);
  const element = h("div", { class: `toast ${level}`, "data-purpose": purpose }, words, close);
  const leave = () => element.remove();
  close.addEventListener("click", leave);
  for (const each of region.querySelectorAll(".toast")) {
    if (purpose !== undefined && /** @type {HTMLElement} */ (each).dataset.purpose === purpose) each.remove();
  }
  region.append(element);
  while (region.children.length > 4) region.firstElementChild?.remove();
  setTimeout(leave, SECONDS * 1000 * (level === "plain" && href === undefined ? 1 : 2)); // time to read, or to reach it
}
