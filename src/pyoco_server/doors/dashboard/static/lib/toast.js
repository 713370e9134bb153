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

/**
 * @param {string} text
 * @param {"plain" | "warning" | "danger"} [level]
 */
export function toast(text, level = "plain") {
  const close = h("button", { type: "button", class: "button icon-only quiet", "aria-label": t("close") }, icon("close"));
  const element = h("div", { class: `toast ${level}` }, h("span", null, text), close);
  const leave = () => element.remove();
  close.addEventListener("click", leave);
  region.append(element);
  while (region.children.length > 4) region.firstElementChild?.remove();
  setTimeout(leave, SECONDS * 1000 * (level === "plain" ? 1 : 2));
}
