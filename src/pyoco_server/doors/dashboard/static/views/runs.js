// The list of runs: live, thousands of rows, narrowed down by what the address says.

import { mayAct } from "../lib/act.js";
import { now } from "../lib/clock.js";
import { connection } from "../lib/connection.js";
import { h, put, write } from "../lib/dom.js";
import { ago, count } from "../lib/format.js";
import { t } from "../lib/i18n.js";
import { button, commandBox, isTyping, nothing, refill, skeleton } from "../lib/parts.js";
import { OPEN_STATUSES, cancelBody, filterHref, filterText, lastingPart, listCommand, readFilter } from "../lib/run_filter.js";
import { readPlace } from "../lib/router.js";
import { RunList } from "../lib/run_list.js";
import { Selection } from "../lib/selection.js";
import { currentKey } from "../lib/session.js";
import { recall, remember } from "../lib/settings.js";
import { RunBulk } from "./runs_bulk.js";
import { RunCounts } from "./runs_counts.js";
import { RunFilters } from "./runs_filters.js";
import { RunGrid } from "./runs_grid.js";
import { gridKey } from "./runs_keys.js";
import { submitRun } from "./runs_submit.js";
import { RunSync } from "./runs_sync.js";
import { RunViews } from "./runs_views.js";
import { openOnlyRun } from "./search.js";
import { sweepHref } from "./sweep.js";

/** @typedef {import("../lib/router.js").Place} Place */
/** @typedef {import("../lib/run_filter.js").RunFilter} RunFilter */

/** As in the style sheet. */
const narrow = matchMedia("(max-width: 52rem)");

/** For this long, whoever comes back finds the list as they left it. */
const KEPT_MS = 10 * 60 * 1000;
/** @type {{ query: string, key: string | null, list: RunList, cursor: string | null, activeId: string | null, scroll: number, at: number } | null} */
let kept = null;
connection.follow((state) => {
  if (state === "locked") kept = null; // whoever comes next has no right to it
});

/**
 * What whoever was here last has left, if it is the same list, not too old, and of the same key: of the same tenant.
 * @param {string} query
 */
function leftBehind(query) {
  const found = kept;
  kept = null;
  const same = found !== null && found.query === query && found.key === currentKey();
  return same && performance.now() - found.at < KEPT_MS ? found : null;
}

/**
 * @param {Place} place
 * @returns {import("../panels.js").View}
 */
export function openRuns(place) {
  const view = new RunsView(readFilter(place.query));
  return {
    element: view.element,
    moved: (to) => view.moved(to),
    close: () => view.close(),
    onKey: (event) => view.onKey(event),
  };
}

function showsParams() {
  return recall("runs.params") === "1";
}

class RunsView {
  /** @param {RunFilter} filter */
  constructor(filter) {
    this.filter = filter;
    this.selection = new Selection();
    this.filters = new RunFilters(() => this.filter, (to) => this.goTo(to));
    this.views = new RunViews(() => this.filter);
    this.bulk = new RunBulk(() => ({
      list: this.list, selection: this.selection, cleared: () => this.unselect(), changed: () => this.drawSelection(),
      done: () => this.sync.soon(), settle: () => this.settle(),
    }));
    this.shown = h("span", { class: "number" });
    this.age = h("time", { "data-as": "ago" });
    this.ageLine = h("span", { class: "dim", hidden: true }, t("runs.as_of"), " ", this.age);
    this.cancelAll = button(t("runs.cancel_all"), () => this.bulk.cancelMatching(), { kind: "quiet", icon: "stop" });
    this.cancelAll.hidden = true;
    this.paramsButton = button(t("runs.params"), () => this.toggleParams(), { kind: "quiet", pressed: showsParams() });
    this.sweepLink = h("a", { class: "button plain", title: t("sweep.open.title") }, t("sweep.open"));
    this.counts = new RunCounts(() => this.filter, (counts) => this.count(counts));
    this.command = h("div", { class: "runs-command" });
    this.foot = h("div");
    this.state = h("div", { class: "runs-state" }, h("div", { class: "runs-state-words" }, this.shown, this.ageLine),
      this.paramsButton, mayAct ? this.cancelAll : h("span"));
    // The button stays at the end of the line, where it was pressed, whatever the command has come to say.
    this.placeCommand = () => (narrow.matches ? this.foot.append(this.command) : this.state.lastElementChild?.before(this.command));
    this.empty = h("div");
    this.tail = h("p", { class: "runs-tail dim" });
    this.place = h("div");
    this.on = this.begin(filter);
    this.element = h("div", { class: "view runs" },
      h("div", { class: "view-head" }, h("h1", null, t("runs.title")), h("div", { class: "runs-tools" }, this.sweepLink, this.views.element,
        mayAct ? button(t("runs.submit"), () => submitRun(this.settle()), { kind: "primary", icon: "upload" }) : null)),
      this.filters.element,
      this.state, this.place, this.empty, this.tail, this.foot, this.bulk.element);
    this.placeCommand();
    narrow.addEventListener("change", this.placeCommand);
    this.tell();
  }

  get list() {
    return this.on.list;
  }

  get grid() {
    return this.on.grid;
  }

  get sync() {
    return this.on.sync;
  }

  /**
   * One list with its rows, and the one who keeps it true.
   * @param {RunFilter} filter
   * @returns {{ list: RunList, grid: RunGrid, sync: RunSync }}
   */
  begin(filter) {
    const before = leftBehind(filterText(filter));
    const list = before?.list ?? new RunList(filter);
    const grid = new RunGrid({
      list, selection: this.selection, selectable: mayAct, onSelect: () => this.bulk.draw(), onNearEnd: () => void sync.more(),
    });
    const sync = new RunSync(list, {
      needs: () => grid.needs(), apply: (change) => this.apply(change), tell: () => this.tell(),
    }, showsParams() ? "params" : undefined);
    grid.element.classList.toggle("with-params", showsParams());
    put(this.place, grid.element);
    if (before) {
      sync.cursor = before.cursor;
      grid.activeId = before.activeId;
      requestAnimationFrame(() => {
        grid.draw(); // as high as it was
        scrollTo({ top: before.scroll, behavior: "instant" }); // the frame has gone to the top
      });
    }
    sync.start();
    this.filters.learn(list.rows);
    return { list, grid, sync };
  }

  close() {
    kept = this.sync.key !== currentKey() ? null : {
      query: filterText(this.filter), key: this.sync.key, list: this.list, cursor: this.sync.cursor, activeId: this.grid.activeId,
      scroll: scrollY, at: performance.now(),
    };
    narrow.removeEventListener("change", this.placeCommand);
    this.counts.stop();
    this.sync.stop();
    this.grid.close();
    this.bulk.close();
  }

  /**
   * The filter is in force before this returns. The address alone would tell of it later, and a button that is pressed
   * meanwhile would act on the list of before.
   * @param {RunFilter} filter
   */
  goTo(filter) {
    location.hash = filterHref(filter);
    this.settle();
    this.tell();
  }

  /**
   * What the address says is what is shown and acted on, be it that nobody has heard of it yet.
   * @returns {RunFilter}
   */
  settle() {
    this.moved(readPlace(location.hash, "runs"));
    return this.filter;
  }

  /**
   * Another filter is another list; fields, chips and what is typed stay as they are.
   * @param {Place} place
   */
  moved(place) {
    if (place.panel !== "runs" || place.rest.length > 0) return false;
    const filter = readFilter(place.query);
    if (filterText(filter) === filterText(this.filter)) return true;
    this.sync.stop();
    this.grid.close();
    this.filter = filter;
    this.unselect();
    this.filters.draw();
    this.on = this.begin(filter);
    this.counts.soon();
    this.tell();
    scrollTo(0, 0);
    return true;
  }

  /** @param {import("./runs_counts.js").Counts | null} counts */
  count(counts) {
    this.filters.count(counts);
    this.tell();
  }

  /** Whether a run that matches may still be cancelled, as far as is known. */
  get someOpen() {
    const open = this.filter.status === undefined ? OPEN_STATUSES : [this.filter.status];
    const numbers = this.filters.counts?.by_status;
    return numbers === undefined || open.some((status) => (numbers[status] ?? 0) > 0);
  }

  /** Kept in this browser. The list is loaded anew: its rows have no params yet. */
  toggleParams() {
    remember("runs.params", showsParams() ? null : "1");
    this.paramsButton.setAttribute("aria-pressed", String(showsParams()));
    this.sync.stop();
    this.grid.close();
    kept = null;
    this.on = this.begin(this.filter);
    this.tell();
  }

  /** @param {() => { newer: number }} change */
  apply(change) {
    const selected = this.selection.ids.size;
    this.grid.apply(change);
    this.filters.learn(this.list.rows.slice(0, 200));
    if (selected > 0 || this.selection.ids.size > 0) this.bulk.draw(); // what was selected may have ended
  }

  unselect() {
    this.selection.clear();
    this.drawSelection();
  }

  drawSelection() {
    this.grid.draw();
    this.bulk.draw();
  }

  /** How many, how old, and what else there is to say. */
  tell() {
    const { rows, full } = this.list;
    const { sync } = this;
    this.grid.complete = sync.loaded && sync.cursor === null && !full;
    const more = sync.cursor !== null || full;
    write(this.shown, sync.loaded || rows.length > 0 ? t(more ? "runs.shown.more" : "runs.shown", { n: count(rows.length) }) : "");
    this.ageLine.hidden = sync.at === null;
    this.age.dataset.at = String(sync.at);
    if (sync.at !== null) write(this.age, ago(now() - sync.at));
    const none = rows.length === 0;
    // While another list is loaded it stays: it may be pressed just now.
    const impossible = cancelBody(this.filter, 0) === null || !this.someOpen;
    if (impossible || sync.loaded || !none) this.cancelAll.hidden = impossible || none;
    this.sweepLink.hidden = filterText(lastingPart(this.filter)) === "";
    this.sweepLink.href = sweepHref(this.filter);
    refill(this.command, filterText(this.filter), () => [commandBox(listCommand(this.filter))]);
    this.grid.element.hidden = none;
    this.grid.element.setAttribute("aria-busy", String(!sync.loaded));
    this.tellEmpty();
    write(this.tail, this.tailWords(rows.length));
    if (sync.loaded) openOnlyRun(this.filter, rows, this.grid.complete);
  }

  /** @param {number} shown */
  tailWords(shown) {
    if (shown === 0) return "";
    if (this.list.full) return t("runs.full", { n: count(this.list.rowsMax) });
    if (this.sync.loadingMore) return t("runs.loading");
    return this.grid.complete ? t("runs.end") : "";
  }

  tellEmpty() {
    const { refused, loaded } = this.sync;
    const narrowed = filterText(this.filter) !== "";
    const none = this.list.rows.length === 0;
    this.empty.hidden = !none && refused === null;
    const made = [refused?.words, loaded, narrowed, none];
    refill(this.empty, made, () => {
      if (refused) return [nothing(t("runs.refused"), h("p", null, refused.words), narrowed ? this.clearButton() : null,
        button(t("runs.again"), () => this.sync.soon()))];
      if (!loaded) return [h("p", { class: "unseen", role: "status" }, t("runs.loading")), skeleton(12)];
      if (narrowed) return [nothing(t("runs.no_match"), h("p", null, t("runs.no_match.note")), this.clearButton())];
      return [nothing(t("runs.none"), h("p", null, t("runs.none.note")),
        commandBox("pyoco-client submit hello name=you --wait"))];
    });
  }

  clearButton() {
    return button(t("runs.clear"), () => {
      this.goTo({});
      this.filters.focusFirst();
    }, { kind: "primary" });
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    const typing = isTyping(event.target);
    if (event.key === "Escape") return this.onEscape(typing);
    if (typing) return false;
    return gridKey(this.grid, event);
  }

  /** @param {boolean} typing */
  onEscape(typing) {
    if (document.querySelector(":popover-open")) return false;
    if (typing) {
      /** @type {HTMLElement} */ (document.activeElement).blur();
      return true;
    }
    if (this.selection.ids.size === 0) return false;
    this.unselect();
    return true;
  }
}
