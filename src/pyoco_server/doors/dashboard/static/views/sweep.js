// The runs of a sweep: all that share a label, or whatever else a list is narrowed down to.

import { act, confirm, mayAct } from "../lib/act.js";
import { address, download, get, send } from "../lib/api.js";
import { h, write } from "../lib/dom.js";
import { count, shortId, span } from "../lib/format.js";
import { t, wordFor } from "../lib/i18n.js";
import { actButton, badge, nothing, refill, skeleton } from "../lib/parts.js";
import { isTrouble, poll } from "../lib/poll.js";
import { href } from "../lib/router.js";
import { STATUSES, filterHref, filterText, lastingPart, readFilter, withFilter } from "../lib/run_filter.js";
import { readRun } from "../lib/run_list.js";
import { save } from "../lib/save.js";
import { toast } from "../lib/toast.js";
import { readCounts } from "./runs_counts.js";

/** @typedef {import("../lib/run_filter.js").RunFilter} RunFilter */
/** @typedef {import("../lib/run_list.js").Row} Row */
/** @typedef {import("./runs_counts.js").Counts} Counts */

const EVERY_SECONDS = 3;
const ROWS = 50;
const PAGE = 200;
const RERUNS_MAX = 10_000;
const RERUNS_AT_ONCE = 4;
const ENDED = ["COMPLETED", "FAILED", "CANCELLED", "UNKNOWN"];

/** @param {RunFilter} filter */
export function sweepHref(filter) {
  return href("runs", ["sweep"], new URLSearchParams(filterText(lastingPart(filter))));
}

/**
 * @param {import("../lib/router.js").Place} place
 * @returns {import("../panels.js").View}
 */
export function openSweep(place) {
  const page = new SweepPage(lastingPart(readFilter(place.query)));
  return { element: page.element, title: t("sweep.of", { name: page.name }), close: () => page.close() };
}

class SweepPage {
  /** @param {RunFilter} filter */
  constructor(filter) {
    this.filter = filter;
    this.name = filter.tag ?? (Object.values(filter).join(" ") || t("runs.view.all"));
    /** @type {Counts | null} */
    this.counts = null;
    /** @type {Set<string>} failed runs that were submitted again from here */
    this.repeated = new Set();
    this.stopping = new AbortController();
    this.bar = h("div", { class: "sweep-bar", role: "img" });
    this.told = h("p", { class: "number", role: "status" });
    this.states = h("ul", { class: "chips" });
    this.rerunButton = actButton(t("sweep.rerun"), () => this.rerunFailed(), { icon: "repeat" });
    this.rerunButton.hidden = true;
    this.progress = h("p", { class: "dim", role: "status", hidden: true });
    this.table = h("div", null, skeleton(6));
    this.element = h("div", { class: "view sweep" },
      h("div", { class: "view-head" }, h("h1", null, t("sweep.of", { name: this.name })),
        h("div", { class: "runs-tools" }, h("a", { class: "button plain", href: filterHref(filter) }, t("sweep.list")),
          actButton(t("sweep.csv"), () => this.downloadTable(), { icon: "download" }),
          mayAct ? this.rerunButton : null)),
      this.bar, this.told, this.states, this.progress, this.table);
    this.poll = poll(EVERY_SECONDS, () => this.ask());
  }

  close() {
    this.poll.stop();
    this.stopping.abort();
  }

  async ask() {
    const { signal } = this.stopping;
    const failed = withFilter(this.filter, "status", "FAILED");
    const [newest, worst] = await Promise.all([
      get(`${address("runs", { ...this.filter, limit: ROWS, include: "counts" })}&include=params`, undefined, signal),
      get("runs", { ...failed, limit: ROWS, include: "params", envelope: true }, signal),
    ]);
    this.counts = readCounts(newest?.counts);
    this.tellCounts();
    this.tellRows(rowsOf(worst), rowsOf(newest).filter((row) => row.status !== "FAILED"));
  }

  tellCounts() {
    if (this.counts === null) return;
    const { by_status: numbers, counted_max: most } = this.counts;
    const all = Object.values(numbers).reduce((sum, number) => sum + number, 0);
    const ended = ENDED.reduce((sum, status) => sum + (numbers[status] ?? 0), 0);
    const shown = [...STATUSES, "UNKNOWN"].filter((status) => (numbers[status] ?? 0) > 0);
    const isLeast = most !== null && shown.some((status) => (numbers[status] ?? 0) >= most);
    const words = t(isLeast ? "sweep.told.least" : "sweep.told", {
      ended: count(ended), all: count(all), share: all === 0 ? 0 : Math.floor((100 * ended) / all),
    });
    write(this.told, words);
    this.bar.setAttribute("aria-label", words);
    refill(this.bar, numbers, () => ["COMPLETED", "FAILED", "CANCELLED", "UNKNOWN", "CANCELLING", "RUNNING", "PENDING"]
      .filter((status) => (numbers[status] ?? 0) > 0).map((status) => part(status, (numbers[status] ?? 0) / all)));
    refill(this.states, numbers, () => shown.map((status) => {
      const number = numbers[status] ?? 0;
      return h("li", null, h("a", { class: `chip status-dot-${status.toLowerCase()}`, href: filterHref(withFilter(this.filter, "status", status)) },
        h("i", { class: "runs-dot", "aria-hidden": "true" }), wordFor("status", status),
        h("span", { class: "runs-count number" }, most !== null && number >= most ? `${count(number)}+` : count(number))));
    }));
    this.rerunButton.hidden = (numbers.FAILED ?? 0) === 0;
  }

  /**
   * @param {Row[]} failed
   * @param {Row[]} others
   */
  tellRows(failed, others) {
    const rows = [...failed, ...others];
    refill(this.table, rows, () => {
      if (rows.length === 0) return [nothing(t("runs.no_match"), h("p", null, t("sweep.none")))];
      return [h("div", { class: "table-wrap" }, h("table", { class: "table" },
        h("caption", { class: "unseen" }, t("sweep.rows")),
        h("thead", null, h("tr", null, ...[t("runs.col.status"), t("sweep.run"), t("runs.col.params"), t("runs.col.ran"), t("sweep.error")]
          .map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", null, ...rows.map(tableRow)))), h("p", { class: "dim small" }, t("sweep.rows"))];
    });
  }

  async downloadTable() {
    const path = address("runs/table", { ...this.filter });
    const file = await act(() => download(path, () => undefined, this.stopping.signal));
    if (file) save(file, `${this.name.replaceAll(/[^\p{L}\p{N}._-]+/gu, "-") || "runs"}.csv`);
  }

  /** Under one key for each run: pressed twice, a run is not repeated twice. */
  async rerunFailed() {
    const number = this.counts?.by_status.FAILED ?? 0;
    const said = await confirm({ title: t("runs.rerun.title", { n: count(number) }), yes: t("runs.rerun.yes"), body: h("p", null, t("sweep.rerun.note")) });
    if (said === null) return;
    const done = { ok: 0, failed: 0 };
    this.progress.hidden = false;
    try {
      await this.rerunPages(done);
    } catch (error) {
      if (!isTrouble(error)) throw error;
      if (!this.stopping.signal.aborted) toast(t("act.unreachable"), "danger");
    }
    this.progress.hidden = true;
    toast([t("runs.reran", { n: count(done.ok) }), done.failed > 0 ? t("runs.reran.failed", { n: count(done.failed) }) : ""].filter(Boolean).join(" "),
      done.failed > 0 ? "warning" : "plain");
    this.poll.soon();
  }

  /** @param {{ ok: number, failed: number }} done */
  async rerunPages(done) {
    const { signal } = this.stopping;
    for (let cursor = null, first = true; (first || cursor !== null) && done.ok + done.failed < RERUNS_MAX; first = false) {
      const page = await get("runs", { ...this.filter, status: "FAILED", envelope: true, limit: PAGE, cursor }, signal);
      cursor = page.next_cursor;
      const left = rowsOf(page).filter((row) => row.kind !== "pack" && !this.repeated.has(row.run_id)).values();
      const one = async () => {
        for (const row of left) {
          signal.throwIfAborted();
          const id = row.run_id;
          await send("POST", `runs/${encodeURIComponent(id)}/rerun`, "{}", undefined, `rerun-failed-${id}`)
            .then(() => {
              this.repeated.add(id);
              done.ok += 1;
            }, (error) => {
              if (error.status === undefined || error.status >= 500) throw error;
              done.failed += 1;
            });
          write(this.progress, t("runs.working", { n: count(done.ok + done.failed) }));
        }
      };
      await Promise.all(Array.from({ length: RERUNS_AT_ONCE }, one));
    }
  }
}

/**
 * @param {any} answer
 * @returns {Row[]}
 */
function rowsOf(answer) {
  const items = Array.isArray(answer?.items) ? answer.items : [];
  return items.map(readRun).filter((/** @type {Row | null} */ row) => row !== null);
}

/**
 * @param {string} status
 * @param {number} share
 */
function part(status, share) {
  const element = h("span", { class: `sweep-part sweep-${status.toLowerCase()}` });
  element.style.flexGrow = String(share);
  return element;
}

/** @param {Row} row */
function tableRow(row) {
  const ran = typeof row.start_time === "number" && typeof row.end_time === "number" ? span(row.end_time - row.start_time) : "";
  return h("tr", null, h("td", null, badge(row.status)),
    h("td", null, h("a", { href: href("runs", [row.run_id]) }, row.flow_name ?? t("runs.no_flow")), " ", h("code", { class: "dim" }, shortId(row.run_id))),
    h("td", { class: "mono sweep-params" }, row.params_preview ?? ""), h("td", { class: "number" }, ran),
    h("td", { class: "sweep-error", title: row.error }, row.error ?? ""));
}
