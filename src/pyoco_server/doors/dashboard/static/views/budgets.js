// The tenants' money: what each can spend, what is reserved for open runs, and what was charged.

import { get } from "../lib/api.js";
import { lock } from "../lib/connection.js";
import { h, put, write } from "../lib/dom.js";
import { list } from "../lib/fleet.js";
import { count } from "../lib/format.js";
import { t } from "../lib/i18n.js";
import { KeyedList } from "../lib/keyed.js";
import { usd } from "../lib/money.js";
import { actButton, button, commandBox, nothing } from "../lib/parts.js";
import { poll } from "../lib/poll.js";
import { href } from "../lib/router.js";
import { openBudget } from "./budget.js";
import { guarded, noteOf } from "./budget_parts.js";
import { cell, Region, rowsHead } from "./fleet_parts.js";

/** @typedef {import("../lib/wire.js").Budget} Budget */

/** The ledger adds up the journal of each tenant that is shown. */
const POLL_SECONDS = 30;
const PAGE = 50;
const PAGES_MAX = 20;
const AMOUNTS = /** @type {const} */ (["balance", "held", "charged", "credited"]);

/**
 * @param {import("../lib/router.js").Place} place
 * @returns {import("../panels.js").View}
 */
export function openBudgets(place) {
  if (place.rest.length > 0) return openBudget(place);
  const view = new Budgets();
  return { element: view.element, close: () => view.poll.stop() };
}

class Budgets {
  constructor() {
    this.pages = 1;
    this.summary = h("p", { class: "summary" });
    this.region = new Region();
    this.more = h("div", { class: "budgets-more" });
    /** @type {KeyedList<Budget>} */
    this.list = new KeyedList(h("div", { class: "row-list", role: "list" }), (budget) => String(budget.tenant_id),
      (budget) => new BudgetRow(String(budget.tenant_id)));
    this.element = h("div", { class: "view budgets" },
      h("div", { class: "view-head" }, h("h1", null, t("budgets.title")), this.summary),
      this.region.element, this.more);
    this.poll = poll(POLL_SECONDS, (signal) => guarded(this.region, () => this.look(signal)));
  }

  /** @param {AbortSignal} signal */
  async look(signal) {
    /** @type {Budget[]} */
    const budgets = [];
    /** @type {string | null} */
    let after = "";
    for (let page = 0; page < this.pages && after !== null; page += 1) {
      const answer = await get("budgets", { limit: PAGE, after }, signal);
      budgets.push(...list(answer?.budgets));
      after = typeof answer?.next_after === "string" ? answer.next_after : null;
    }
    const isAll = after === null;
    write(this.summary, budgets.length === 0 ? "" : t(isAll ? "budgets.count" : "budgets.count.more", { n: count(budgets.length) }));
    if (budgets.length === 0) this.region.show("nothing", () => [empty()]);
    else this.region.show("list", () => [h("div", { class: "rows budgets-rows" },
      rowsHead([t("budgets.tenant"), ...AMOUNTS.map((name) => t(`budgets.${name}`))]), this.list.element)]);
    this.list.show(budgets);
    const offers = !isAll && this.pages < PAGES_MAX;
    if (offers !== (this.more.childElementCount > 0)) {
      put(this.more, offers ? actButton(t("budgets.more"), () => this.readOn(), { icon: "down" }) : null);
    }
  }

  async readOn() {
    this.pages += 1;
    this.poll.soon();
  }
}

/** Only a caller without a valid key is shown none. */
function empty() {
  return nothing(t("budgets.key"), button(t("key.enter"), () => lock("missing")), h("p", null, t("budgets.key.why")),
    commandBox("pyoco-server-admin api-key create --tenant my-tenant"),
    commandBox("pyoco-server-admin budget credit --tenant my-tenant --usd 10.0000"));
}

class BudgetRow {
  /** @param {string} tenant */
  constructor(tenant) {
    this.name = h("a", { class: "budget-name", href: href("budgets", [tenant]) }, tenant);
    this.note = h("span", { class: "dim small clip" });
    this.cells = AMOUNTS.map((name) => cell(t(`budgets.${name}`), name));
    this.element = h("div", { class: "row", role: "listitem" }, h("div", { class: "row-line" },
      h("div", { class: "cell cell-name" }, this.name, this.note),
      this.cells.map((each) => each.element)));
  }

  /** @param {Budget} budget */
  update(budget) {
    write(this.note, noteOf(budget));
    AMOUNTS.forEach((name, at) => {
      const value = /** @type {{ value: Element }} */ (this.cells[at]).value;
      value.classList.add("number");
      write(value, usd(budget[`${name}_usd_micros`]));
    });
  }
}
