// What the list of budgets and the page of one share.

import { Refused } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { t, wordFor } from "../lib/i18n.js";
import { nothing } from "../lib/parts.js";

/** @typedef {import("../lib/wire.js").Budget} Budget */

const LEDGER_AWAY = "ERR-PYOCO-0036";

/**
 * Do the work; that the ledger does not answer is told here, since the rest of the page may be well.
 * @param {import("./fleet_parts.js").Region} region
 * @param {() => Promise<unknown>} work
 */
export async function guarded(region, work) {
  try {
    await region.guard(work);
  } catch (error) {
    if (!(error instanceof Refused) || error.told.err_id !== LEDGER_AWAY) throw error;
    // What is shown already stays: it was true a moment ago, and has its own times.
    if (region.kind === "" || region.kind === "away") region.show("away", () => [nothing(t("budgets.away"), h("p", null, t("budgets.away.why")))]);
  }
}

/**
 * Its name for people, where that says more; and that it is suspended.
 * @param {Budget} budget
 */
export function noteOf(budget) {
  const name = String(budget.display_name ?? "");
  const status = String(budget.status ?? "ACTIVE");
  return [name === budget.tenant_id ? "" : name, status === "ACTIVE" ? "" : wordFor("budgets.status", status)].filter(Boolean).join(" · ");
}
