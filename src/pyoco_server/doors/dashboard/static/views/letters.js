// Jobs that were set aside: why, how many, and what to do with them.

import { get } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { list, whole } from "../lib/fleet.js";
import { count } from "../lib/format.js";
import { t, wordFor } from "../lib/i18n.js";
import { KeyedList } from "../lib/keyed.js";
import { countOf, FILTERS, given, placeOf, readFilter } from "../lib/letters.js";
import { button, commandBox, nothing, refill, shellWord } from "../lib/parts.js";
import { poll } from "../lib/poll.js";
import { href } from "../lib/router.js";
import { afterTyping, Meter, Region, replacePlace, showSince } from "./fleet_parts.js";
import { LettersBulk } from "./letters_bulk.js";
import { LettersList } from "./letters_list.js";

/** @typedef {import("../lib/wire.js").LetterCounts} LetterCounts */
/** @typedef {import("../lib/wire.js").LetterGroup} LetterGroup */
/** @typedef {import("../lib/router.js").Place} Place */

/** Letters are rare and stay: counts are kept by the gateway, and the page of letters is read along with them. */
const POLL_SECONDS = 10;
const GROUPS_SHOWN = 12;
const WHOLE_ID = 36;

/**
 * @param {Place} place
 * @returns {import("../panels.js").View}
 */
export function openLetters(place) {
  const view = new Letters(place);
  return { element: view.element, moved: (to) => view.moved(to), close: () => view.close() };
}

class Letters {
  /** @param {Place} place */
  constructor(place) {
    this.filter = readFilter(place.query);
    /** @type {string | null} */
    this.letter = place.query.get("letter");
    /** @type {LetterCounts | null} */
    this.counts = null;
    this.showsAll = false;
    this.most = { count: 0 };
    this.summary = h("p", { class: "summary" });
    this.chips = h("div", { class: "chips" });
    this.fields = this.filterFields();
    this.region = new Region();
    this.more = h("div");
    this.command = h("div");
    /** @type {KeyedList<LetterGroup>} */
    this.groups = new KeyedList(h("div", { class: "row-list", role: "list" }), keyOf,
      (group) => new GroupRow(group, this.most, () => this.choose(group)));
    this.list = new LettersList({ opened: (id) => this.opened(id), changed: () => this.poll.soon() });
    this.bulk = new LettersBulk(() => this.poll.soon());
    this.body = h("div", { class: "letters-body" },
      h("section", { class: "letters-groups", "aria-label": t("letters.groups") }, h("h2", null, t("letters.groups")),
        h("div", { class: "rows" }, this.groups.element), this.more),
      h("section", { class: "letters-letters", "aria-label": t("letters.letters") },
        h("div", { class: "card-head" }, h("h2", null, t("letters.letters")), this.chips),
        this.fields, this.bulk.element, this.list.element));
    this.element = h("div", { class: "view letters" },
      h("div", { class: "view-head" }, h("h1", null, t("letters.title")), this.summary),
      this.region.element, this.command);
    this.poll = poll(POLL_SECONDS, (signal) => this.region.guard(() => this.look(signal)));
  }

  close() {
    this.poll.stop();
    this.bulk.stop();
    this.list.close();
  }

  /** @param {Place} place */
  moved(place) {
    if (place.panel !== "letters") return false;
    const filter = readFilter(place.query);
    const isOther = JSON.stringify(filter) !== JSON.stringify(this.filter);
    this.filter = filter;
    this.letter = place.query.get("letter");
    if (isOther) this.list.forget();
    this.draw();
    this.poll.soon();
    return true;
  }

  /** @param {AbortSignal} signal */
  async look(signal) {
    const filter = this.filter;
    const found = await get("dlq/counts", {}, signal);
    this.counts = { total: whole(found?.total), groups: list(found?.groups) };
    this.draw();
    if (this.counts.total > 0 || this.list.letters.length > 0) await this.list.refresh(filter, this.letter, signal);
  }

  draw() {
    const { counts, filter } = this;
    refill(this.chips, filter, () => this.chipParts());
    for (const name of /** @type {const} */ (["tag", "run_id"])) {
      const field = /** @type {HTMLInputElement | null} */ (this.fields.querySelector(`[name=${name}]`));
      if (field && field !== document.activeElement) field.value = filter[name] ?? "";
    }
    this.drawCommand();
    this.body.classList.toggle("narrowed", Object.keys(given(filter)).length > 0);
    if (counts === null) return;
    refill(this.summary, counts.total, () => [t(counts.total === 1 ? "letters.total_one" : "letters.total", { n: count(counts.total) })]);
    if (counts.total === 0 && Object.keys(given(filter)).length === 0) this.region.show("nothing", () => [empty()]);
    else this.region.show("body", () => [this.body]);
    this.most.count = Math.max(0, ...counts.groups.map((group) => group.count));
    const shown = this.showsAll ? counts.groups : counts.groups.slice(0, GROUPS_SHOWN);
    this.groups.show(shown);
    for (const row of this.groups.rows.values()) /** @type {GroupRow} */ (row).mark(filter);
    const hidden = counts.groups.length - shown.length;
    refill(this.more, hidden, () => (hidden === 0 ? [] : [button(t("letters.more_groups", { n: count(hidden) }), () => {
      this.showsAll = true;
      this.draw();
    })]));
    this.bulk.show(filter, countOf(filter, counts));
  }

  chipParts() {
    const set = FILTERS.filter((name) => this.filter[name] !== null);
    if (set.length === 0) return [];
    return [...set.map((name) => {
      const value = /** @type {string} */ (this.filter[name]);
      const words = name === "reason" ? wordFor("letters.reason", value) : value === "" ? t("letters.no_flow") : value;
      return h("button", {
        type: "button", class: "chip on", title: t("letters.drop"),
        onclick: () => this.go({ ...this.filter, [name]: null }),
      }, h("span", { class: "chip-text" }, `${t(`letters.${name}`)}: ${words}`), h("span", { "aria-hidden": "true" }, "×"));
    }), h("a", { class: "small", href: href("letters") }, t("letters.all_groups"))];
  }

  filterFields() {
    const field = (/** @type {"tag" | "run_id"} */ name, /** @type {string} */ label) => h("label", { class: "filter-field" },
      h("span", { class: "small dim" }, label), h("input", {
        type: "search", name, maxlength: "200", autocomplete: "off", spellcheck: "false",
        oninput: afterTyping((text) => {
          // A run is asked for by its whole id: part of one finds nothing, and says so while somebody still types.
          if (name === "run_id" && text !== "" && text.length < WHOLE_ID) return;
          if ((this.filter[name] ?? "") !== text) this.go({ ...this.filter, [name]: text || null });
        }),
      }));
    return h("div", { class: "filters" }, field("tag", t("letters.tag")), field("run_id", t("letters.run_id")));
  }

  /** @param {LetterGroup} group */
  choose(group) {
    const isChosen = this.filter.reason === group.reason && this.filter.flow === (group.flow_name ?? "");
    this.go({ ...this.filter, reason: isChosen ? null : group.reason, flow: isChosen ? null : group.flow_name ?? "" });
  }

  /** @param {import("../lib/letters.js").LetterFilter} filter */
  go(filter) {
    location.hash = href("letters", [], placeOf(filter));
  }

  /** @param {string | null} id */
  opened(id) {
    this.letter = id;
    replacePlace(href("letters", [], { ...placeOf(this.filter), letter: id }));
    this.drawCommand();
  }

  drawCommand() {
    const words = Object.entries(given(this.filter)).map(([name, value]) => `--${name.replace("_", "-")} ${shellWord(value)}`);
    const command = this.letter !== null ? `pyoco-client dlq show ${shellWord(this.letter)}`
      : words.length === 0 ? "pyoco-client dlq counts --output table" : `pyoco-client dlq list ${words.join(" ")} --output table`;
    refill(this.command, command, () => [commandBox(command)]);
  }
}

/** @param {LetterGroup} group */
function keyOf(group) {
  return JSON.stringify([group.reason, group.flow_name]);
}

function empty() {
  return nothing(t("letters.none"), h("p", { class: "prose" }, t("letters.none_how")));
}

/** Letters of one reason and one flow. */
class GroupRow {
  /**
   * @param {LetterGroup} group
   * @param {{ count: number }} most
   * @param {() => void} choose
   */
  constructor(group, most, choose) {
    this.group = group;
    this.most = most;
    this.meter = new Meter("letters");
    this.newest = h("span", { class: "small dim" });
    const reason = String(group.reason);
    this.button = h("button", { type: "button", class: "group", onclick: choose },
      h("span", { class: "group-title" }, h("strong", { class: "clip" }, group.flow_name ?? t("letters.no_flow")), this.newest),
      h("span", { class: "group-reason" }, wordFor("letters.reason", reason), " ", h("code", { class: "dim" }, reason)),
      h("span", { class: "small dim" }, wordFor("letters.why", reason) === reason ? "" : wordFor("letters.why", reason)),
      this.meter.element);
    this.element = h("div", { class: "row", role: "listitem" }, this.button);
  }

  /** @param {LetterGroup} group */
  update(group) {
    this.group = group;
    this.meter.show(whole(group.count), this.most.count, count(whole(group.count)));
    showSince(this.newest, group.newest_at);
  }

  /** @param {import("../lib/letters.js").LetterFilter} filter */
  mark(filter) {
    const chosen = filter.reason === this.group.reason && filter.flow === (this.group.flow_name ?? "");
    this.button.setAttribute("aria-pressed", String(chosen));
    this.element.classList.toggle("open", chosen);
  }
}
