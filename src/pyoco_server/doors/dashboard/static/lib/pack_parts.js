// What a list and a page show of a priced run's money: a picture, a colour and the word.

import { h } from "./dom.js";
import { t, wordFor } from "./i18n.js";
import { icon } from "./icons.js";
import { usd } from "./money.js";

/** @typedef {import("./wire.js").Cost} Cost */

/** @type {Record<string, { icon: import("./icons.js").Icon, tone: string }>} */
const MONEY = {
  NONE: { icon: "idle", tone: "off" },
  RESERVED: { icon: "pending", tone: "wait" },
  SETTLED: { icon: "completed", tone: "ok" },
  REFUNDED: { icon: "repeat", tone: "off" },
  DISPUTED: { icon: "danger", tone: "bad" },
};

/** @param {string} state */
export function moneyBadge(state) {
  const shown = Object.hasOwn(MONEY, state) ? MONEY[state] : MONEY.NONE;
  return h("span", { class: `badge money-${shown?.tone}` }, icon(shown?.icon ?? "idle"), wordFor("pack.money", state));
}

/**
 * What it cost, or may cost, in a few words.
 * @param {Cost | undefined} cost
 */
export function costWords(cost) {
  if (typeof cost !== "object" || cost === null) return "";
  return t("pack.cost", { used: usd(cost.used_usd_micros), reserved: usd(cost.reserved_usd_micros) });
}
