// One tenant's money: how it stands, what was charged over time, and every movement.

import { get } from "../lib/api.js";
import { h, put, write } from "../lib/dom.js";
import { Chart } from "../lib/chart.js";
import { Signal } from "../lib/events.js";
import { list, whole } from "../lib/fleet.js";
import { clockTime, count, dayAndTime, dayOfMonth } from "../lib/format.js";
import { t } from "../lib/i18n.js";
import { micros, moneyTicks, usd } from "../lib/money.js";
import { card, commandBox, shellWord } from "../lib/parts.js";
import { poll } from "../lib/poll.js";
import { href } from "../lib/router.js";
import { dayTicks, largest } from "../lib/scale.js";
import { BudgetJournal } from "./budget_journal.js";
import { guarded, noteOf } from "./budget_parts.js";
import { Region, replacePlace } from "./fleet_parts.js";

/** @typedef {import("../lib/wire.js").Budget} Budget */
/** @typedef {import("../lib/router.js").Place} Place */

const POLL_SECONDS = 15;
const SPEND_POLL_SECONDS = 60;
const DAY = 86_400;
/** Bars few enough to be told apart. */
const RANGES = /** @type {const} */ ({
  day: { seconds: DAY, step: 3600 },
  week: { seconds: 7 * DAY, step: 21_600 },
  month: { seconds: 30 * DAY, step: DAY },
});
/** @typedef {keyof typeof RANGES} Range */
const AMOUNTS = /** @type {const} */ (["balance", "held", "charged", "credited"]);

/**
 * @param {Place} place
 * @returns {import("../panels.js").View}
 */
export function openBudget(place) {
  const view = new OneBudget(String(place.rest[0]), rangeOf(place));
  return { element: view.element, title: view.tenant, moved: (to) => view.moved(to), close: () => view.close() };
}

/**
 * @param {Place} place
 * @returns {Range}
 */
function rangeOf(place) {
  const name = place.query.get("span") ?? "";
  return Object.hasOwn(RANGES, name) ? /** @type {Range} */ (name) : "month";
}

class OneBudget {
  /**
   * @param {string} tenant
   * @param {Range} range
   */
  constructor(tenant, range) {
    this.tenant = tenant;
    this.path = `budgets/${encodeURIComponent(tenant)}`;
    this.note = h("span", { class: "dim" });
    this.figures = new Map(AMOUNTS.map((name) => [name, h("dd", { class: "number" }, "–")]));
    this.region = new Region();
    this.spend = new SpendCard(this.path, range, (chosen) => replacePlace(href("budgets", [tenant], { span: chosen })));
    this.journal = new BudgetJournal(this.path);
    this.body = [this.figureList(), this.spend.element, this.journal.element,
      card(t("budgets.terminal"), {}, commandBox(`pyoco-server-admin budget show --tenant ${shellWord(tenant)}`),
        commandBox(`pyoco-server-admin budget verify --tenant ${shellWord(tenant)}`))];
    this.element = h("div", { class: "view budgets" },
      h("a", { class: "run-back small", href: href("budgets") }, `← ${t("budgets.back")}`),
      h("div", { class: "view-head" }, h("h1", { class: "budget-name" }, tenant), this.note),
      this.region.element);
    this.polls = [poll(POLL_SECONDS, (signal) => guarded(this.region, () => this.look(signal)))];
  }

  figureList() {
    const open = href("runs", [], { kind: "pack" });
    return h("div", { class: "budget-figures" },
      h("dl", { class: "figures" }, [...this.figures].map(([name, value]) =>
        h("div", { class: "figure" }, h("dt", null, t(`budgets.${name}`)), value))),
      h("p", { class: "dim small" }, t("budgets.runs.note"), " ", h("a", { href: open }, t("budgets.runs"))));
  }

  close() {
    for (const each of this.polls) each.stop();
    this.spend.close();
  }

  /** @param {Place} place */
  moved(place) {
    if (place.panel !== "budgets" || place.rest[0] !== this.tenant) return false;
    this.spend.choose(rangeOf(place));
    return true;
  }

  /** @param {AbortSignal} signal */
  async look(signal) {
    /** @type {Budget} */
    const budget = await get(this.path, {}, signal);
    write(this.note, noteOf(budget));
    for (const [name, value] of this.figures) write(value, usd(budget[`${name}_usd_micros`]));
    await this.journal.refresh(signal);
    this.region.show("budget", () => {
      this.polls.push(poll(SPEND_POLL_SECONDS, (spendSignal) => this.spend.look(spendSignal)));
      this.spend.poll = this.polls.at(-1) ?? null;
      return this.body;
    });
  }
}

class SpendCard {
  /**
   * @param {string} path
   * @param {Range} range
   * @param {(range: Range) => void} chosen
   */
  constructor(path, range, chosen) {
    this.path = path;
    this.range = range;
    this.chosen = chosen;
    /** @type {import("../lib/poll.js").Poll | null} */
    this.poll = null;
    this.ranges = h("div", { class: "chips", role: "group", "aria-label": t("budgets.range") });
    this.chart = new Chart({
      title: t("budgets.spend"), cursor: new Signal(/** @type {number | null} */ (null)), format: usd, ticks: moneyTicks, class: "wide",
      series: [{ key: "charged", name: t("budgets.charged"), tone: "accent", as: "bar" }],
      time: {
        ticks: (from, to, most) => dayTicks(from, to, most, this.range === "day" ? 0 : DAY),
        tick: (at) => (this.range === "day" ? clockTime(at) : dayOfMonth(at)),
        whole: dayAndTime,
      },
    });
    this.element = h("div", { class: "budget-spend" }, this.ranges, this.chart.element);
    this.drawRanges();
  }

  close() {
    this.chart.close();
  }

  drawRanges() {
    put(this.ranges, ...Object.keys(RANGES).map((name) => {
      const range = /** @type {Range} */ (name);
      return h("button", {
        type: "button", class: "chip", "aria-pressed": String(range === this.range), "data-range": range,
        onclick: () => {
          this.chosen(range);
          this.choose(range);
          /** @type {HTMLElement | null} */ (this.ranges.querySelector(`[data-range="${range}"]`))?.focus();
        },
      }, t(`budgets.range.${range}`));
    }));
  }

  /** @param {Range} range */
  choose(range) {
    if (range === this.range) return;
    this.range = range;
    this.drawRanges();
    this.poll?.soon();
  }

  /** @param {AbortSignal} signal */
  async look(signal) {
    const { range } = this;
    const answer = await get(`${this.path}/spend`, RANGES[range], signal);
    if (range === this.range) this.show(answer);
  }

  /** @param {any} answer */
  show(answer) {
    const step = whole(answer?.step_seconds) || DAY;
    const from = Number(answer?.from) || 0;
    const to = Math.max(Number(answer?.now) || 0, from + step);
    const length = Math.min(1000, Math.ceil((to - from) / step));
    const at = Array.from({ length }, (_, place) => from + place * step);
    /** @type {number[]} */
    const charged = at.map(() => 0);
    let [sum, runs] = [0n, 0];
    for (const each of /** @type {import("../lib/wire.js").SpendStep[]} */ (list(answer?.steps))) {
      const place = Math.round((Number(each.start_at) - from) / step);
      const amount = micros(each.charged_usd_micros) ?? 0n;
      if (charged[place] === undefined) continue;
      charged[place] += Number(amount);
      sum += amount;
      runs += whole(each.runs);
    }
    const since = dayAndTime(from);
    const words = { usd: usd(sum), n: count(runs), at: since };
    this.chart.show({
      table: { at, step, columns: { charged } }, from, to: from + length * step,
      now: t("budgets.spend.sum", words),
      range: sum === 0n ? "" : t("budgets.spend.range", { usd: usd(largest([charged])) }),
      summary: t(sum === 0n ? "budgets.spend.none" : "budgets.spend.say", words),
      ...(sum === 0n ? { empty: t("budgets.spend.none", words) } : {}),
    });
  }
}
