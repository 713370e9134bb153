// What the list shows, chosen with chips and fields, and kept in the address.

import { h, put, write } from "../lib/dom.js";
import { count } from "../lib/format.js";
import { t, wordFor } from "../lib/i18n.js";
import { icon } from "../lib/icons.js";
import { FILTER_NAMES, KINDS, STATUSES, filterText, isOfPrograms, withFilter } from "../lib/run_filter.js";
import { Seen } from "../lib/seen.js";

/** @typedef {import("../lib/run_filter.js").RunFilter} RunFilter */
/** @typedef {import("../lib/run_filter.js").FilterName} FilterName */

export class RunFilters {
  /**
   * @param {() => RunFilter} current
   * @param {(filter: RunFilter) => void} goTo shows that list at once
   */
  constructor(current, goTo) {
    this.current = current;
    this.goTo = goTo;
    this.flows = h("datalist", { id: "runs-flows" });
    this.tags = h("datalist", { id: "runs-tags" });
    this.programs = h("datalist", { id: "runs-programs" });
    this.clients = h("datalist", { id: "runs-clients" });
    this.seenFlows = new Seen(this.flows);
    this.seenTags = new Seen(this.tags);
    this.seenPrograms = new Seen(this.programs);
    this.seenClients = new Seen(this.clients);
    /** Who looks for programs names those, and their clients; flows have names and tags. */
    this.flowFields = [this.field("flow", "runs-flows"), this.field("tag", "runs-tags")];
    this.programFields = [this.field("exec", "runs-programs"), this.field("client_id", "runs-clients")];
    this.kind = h("select", { "aria-label": t("runs.filter.kind"), onchange: () => this.set("kind", this.kind.value) },
      h("option", { value: "" }, t("runs.kind.any")),
      ...KINDS.map((kind) => h("option", { value: kind }, wordFor("runs.kind", kind))));
    this.opener = h("button", {
      type: "button", class: "button runs-opener", "aria-expanded": "false", "aria-controls": "runs-more runs-statuses",
      onclick: () => this.open(!this.isOpen),
    }, icon("down"), h("span", null, t("runs.filters")));
    this.isOpen = false;
    /** @type {import("./runs_counts.js").Counts | null} */
    this.counts = null;
    this.statuses = h("div", { id: "runs-statuses", class: "chips runs-statuses", role: "group", "aria-label": t("runs.filter.status") });
    this.chips = h("div", { class: "chips" });
    this.element = h("div", { class: "runs-filters" },
      h("div", { class: "runs-fields", role: "group", "aria-label": t("runs.filters") },
        this.opener, h("div", { id: "runs-more", class: "runs-more" },
          ...this.flowFields, ...this.programFields, this.kind)),
      this.flows, this.tags, this.programs, this.clients,
      h("div", { class: "runs-chips" }, this.statuses, this.chips));
    this.draw();
  }

  /**
   * The gateway looks for exact names, so nothing is asked before the name is whole: Enter, leaving the field, or a
   * choice from the list.
   * @param {"flow" | "tag" | "exec" | "client_id"} name
   * @param {string} list
   */
  field(name, list) {
    const input = h("input", {
      type: "text", list, placeholder: t(`runs.filter.${name}`), "aria-label": t(`runs.filter.${name}`), maxlength: "512",
      autocomplete: "off", spellcheck: "false",
    });
    const apply = () => {
      const value = input.value.trim();
      if (value === "") return;
      input.value = "";
      this.set(name, value);
    };
    input.addEventListener("change", apply);
    input.addEventListener("input", (event) => {
      if (!(event instanceof InputEvent) || event.inputType === "insertReplacementText") apply(); // picked from the list
    });
    return input;
  }

  /**
   * @param {FilterName} name
   * @param {string | undefined} value
   */
  set(name, value) {
    this.goTo(withFilter(this.current(), name, value));
  }

  /**
   * On a narrow screen, most of it opens on demand. What is in force is always shown.
   * @param {boolean} wanted
   */
  open(wanted) {
    this.isOpen = wanted;
    this.element.classList.toggle("is-open", wanted);
    this.opener.setAttribute("aria-expanded", String(wanted));
  }

  draw() {
    const filter = this.current();
    const focused = document.activeElement instanceof HTMLElement ? document.activeElement : null;
    const place = [...this.chips.children].indexOf(/** @type {Element} */ (focused));
    if (filterText(filter) !== "") this.open(true); // and it stays open, under the reader's hands
    put(this.statuses, ...[undefined, ...STATUSES].map((status) => this.statusChip(status, filter.status)));
    const others = FILTER_NAMES.filter((name) => name !== "status" && filter[name] !== undefined);
    put(this.chips, ...others.map((name) => this.chip(name, /** @type {string} */ (filter[name]))),
      others.length + Number(filter.status !== undefined) > 0
        ? h("button", { type: "button", class: "button quiet runs-clear", onclick: () => this.goTo({}) }, t("runs.clear"))
        : null);
    for (const each of this.flowFields) each.hidden = isOfPrograms(filter);
    for (const each of this.programFields) each.hidden = !isOfPrograms(filter);
    this.kind.value = KINDS.includes(filter.kind ?? "") ? /** @type {string} */ (filter.kind) : "";
    this.refocus(focused?.dataset.chip, place);
  }

  /**
   * The chips were made anew. One that was removed leaves the focus to the next.
   * @param {string | undefined} name of the chip that had the focus
   * @param {number} place where it was among the chips to remove, or the button behind them; -1: elsewhere
   */
  refocus(name, place) {
    if (name === undefined && place < 0) return;
    const same = name === undefined ? null : this.element.querySelector(`[data-chip="${CSS.escape(name)}"]`);
    const others = this.chips.querySelectorAll(".chip");
    const next = same ?? others[Math.min(place, others.length - 1)];
    if (next) /** @type {HTMLElement} */ (next).focus();
    else this.focusFirst();
  }

  /** Where one begins to search. On a phone it is a button: a field would bring up the keys for letters. */
  focusFirst() {
    (this.opener.checkVisibility() ? this.opener : document.getElementById("search"))?.focus();
  }

  /** @param {import("./runs_counts.js").Counts | null} counts */
  count(counts) {
    this.counts = counts;
    for (const chip of this.statuses.querySelectorAll(".runs-count")) write(chip, this.countText(/** @type {HTMLElement} */ (chip).dataset.status));
  }

  /** @param {string | undefined} status */
  countText(status) {
    if (this.counts === null || status === undefined) return "";
    const number = this.counts.by_status[status] ?? 0;
    return this.counts.counted_max !== null && number >= this.counts.counted_max ? `${count(number)}+` : count(number);
  }

  /**
   * @param {string | undefined} status undefined: any
   * @param {string | undefined} chosen
   */
  statusChip(status, chosen) {
    return h("button", {
      type: "button", class: `chip runs-status-chip ${status ? `status-dot-${status.toLowerCase()}` : ""}`,
      "data-chip": `status ${status ?? ""}`, "aria-pressed": String(status === chosen),
      onclick: () => this.set("status", status === chosen ? undefined : status),
    }, status ? h("i", { class: "runs-dot", "aria-hidden": "true" }) : null, status ? wordFor("status", status) : t("runs.any"),
    status ? h("span", { class: "runs-count number", "data-status": status }, this.countText(status)) : null);
  }

  /**
   * @param {FilterName} name
   * @param {string} value
   */
  chip(name, value) {
    const shown = name === "kind" ? wordFor("runs.kind", value) : value;
    return h("button", {
      type: "button", class: "chip on", "data-chip": name, title: `${t(`runs.filter.${name}`)}: ${value}`,
      "aria-label": t("runs.filter.remove", { name: t(`runs.filter.${name}`), value }),
      onclick: () => this.set(name, undefined),
    }, h("span", { class: "runs-chip-text" }, `${t(`runs.filter.${name}`)}: ${shown}`), icon("close"));
  }

  /** @param {import("../lib/wire.js").RunSummary[]} rows */
  learn(rows) {
    this.seenFlows.add(rows.map((row) => row.flow_name));
    this.seenTags.add(rows.flatMap((row) => [row.tag, ...(row.tags ?? [])]));
    this.seenPrograms.add(rows.map((row) => row.exec_name));
    this.seenClients.add(rows.map((row) => row.client_id));
  }
}
