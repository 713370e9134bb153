// Jobs that were set aside: why, how many, and what to do with them.

import { get } from "../lib/api.js";
import { h, write } from "../lib/dom.js";
import { list, whole } from "../lib/fleet.js";
import { count } from "../lib/format.js";
import { t, wordFor } from "../lib/i18n.js";
import { KeyedList } from "../lib/keyed.js";
import { countOf, FILTERS, given, isSame, placeOf, readFilter, TYPED } from "../lib/letters.js";
import { button, commandBox, nothing, refill, shellWord } from "../lib/parts.js";
import { poll } from "../lib/poll.js";
import { href } from "../lib/router.js";
import { afterTyping, Meter, Region, replacePlace, showSince } from "./fleet_parts.js";
import { LettersBulk, optionsOf, whyWords, wordOf } from "./letters_bulk.js";
import { LettersList } from "./letters_list.js";

/** @typedef {import("../lib/wire.js").LetterCounts} LetterCounts */
/** @typedef {import("../lib/wire.js").LetterGroup} LetterGroup */
/** @typedef {import("../lib/letters.js").LetterFilter} LetterFilter */
/** @typedef {import("../lib/router.js").Place} Place */
/** @typedef {typeof TYPED[number]} Typed */

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
    this.heading = h("h1", { tabindex: "-1" }, t("letters.title"));
    this.fields = {
      tag: this.field("tag"), run_id: this.field("run_id"), exec: this.field("exec"), client_id: this.field("client_id"),
      group: this.field("group"),
    };
    this.region = new Region();
    this.more = h("div");
    this.command = h("div");
    /** @type {KeyedList<LetterGroup>} */
    this.groups = new KeyedList(h("div", { class: "row-list", role: "list" }), keyOf,
      (group) => new GroupRow(group, this.most, () => this.choose(group)));
    this.list = new LettersList(this.letter, { opened: (id) => this.opened(id), changed: () => this.poll.soon() });
    this.bulk = new LettersBulk(() => this.poll.soon(), () => this.settle());
    this.body = h("div", { class: "letters-body" },
      h("section", { class: "letters-groups", "aria-label": t("letters.groups") }, h("h2", null, t("letters.groups")),
        h("div", { class: "rows" }, this.groups.element), this.more),
      h("section", { class: "letters-letters", "aria-label": t("letters.letters") },
        h("div", { class: "card-head" }, h("h2", null, t("letters.letters")), this.chips),
        h("div", { class: "filters" }, ...Object.values(this.fields).map((field) => field.element)), this.bulk.element, this.list.element));
    this.element = h("div", { class: "view letters" },
      h("div", { class: "view-head" }, this.heading, this.summary),
      this.bulk.outcome, this.region.element, this.command);
    this.poll = poll(POLL_SECONDS, (signal) => this.region.guard(() => this.look(signal)));
  }

  close() {
    this.poll.stop();
    this.bulk.close();
    this.list.close();
    for (const field of Object.values(this.fields)) field.typing.cancel();
  }

  /** @param {Place} place */
  moved(place) {
    if (place.panel !== "letters") return false;
    const filter = readFilter(place.query);
    for (const name of TYPED) this.fields[name].show(filter[name]);
    this.take(filter, place.query.get("letter"));
    return true;
  }

  /** What stands in the fields is what is looked for, from now on. */
  settle() {
    for (const field of Object.values(this.fields)) field.typing.settle();
    this.drawBulk();
  }

  /**
   * @param {LetterFilter} filter
   * @param {string | null} letter
   */
  take(filter, letter) {
    const isOther = !isSame(filter, this.filter);
    this.filter = filter;
    this.letter = this.list.open = letter;
    if (isOther) this.list.forget();
    this.drawBulk();
    this.draw();
    this.poll.soon();
  }

  /** @param {AbortSignal} signal */
  async look(signal) {
    const found = await get("dlq/counts", {}, signal);
    const isFirst = this.counts === null;
    this.counts = { total: whole(found?.total), groups: list(found?.groups) };
    if (isFirst) this.draw();
    const hasFilter = Object.keys(given(this.filter)).length > 0;
    if (this.counts.total > 0 || this.list.letters.length > 0 || hasFilter) await this.list.refresh(this.filter, signal);
    this.drawBulk(); // after the list: what is meant is what can be seen
    this.draw();
  }

  /** Nothing can be done to many while the list or a field shows another filter than the one in force. */
  drawBulk() {
    const { filter, list: shown } = this;
    const isKnown = isSame(shown.filter, filter) && Object.values(this.fields).every((field) => field.isTaken());
    this.bulk.show(filter, countOf(filter, this.counts) ?? shown.total(filter), shown.newest(filter), isKnown);
  }

  draw() {
    const focused = document.activeElement;
    const hadFocus = focused !== null && this.element.contains(focused);
    this.drawChips();
    this.drawCommand();
    this.drawCounts();
    if (hadFocus && !focused.isConnected && document.activeElement === document.body) this.heading.focus({ preventScroll: true });
  }

  drawCounts() {
    const { counts, filter } = this;
    this.body.classList.toggle("narrowed", Object.keys(given(filter)).length > 0);
    if (counts === null) return;
    refill(this.summary, counts.total, () => [t("letters.total", { n: count(counts.total) })]);
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
      this.groups.element.children[GROUPS_SHOWN]?.querySelector("button")?.focus();
    })]));
  }

  /** The focus of a chip that goes is passed on: to the one that takes its place, else to where one would narrow down anew. */
  drawChips() {
    const focused = document.activeElement;
    const at = [...this.chips.children].findIndex((each) => each === focused);
    refill(this.chips, this.filter, () => this.chipParts());
    if (at === -1 || focused === null || focused.isConnected) return;
    const chips = [...this.chips.querySelectorAll("button")];
    const same = chips.find((each) => each.dataset.name === /** @type {HTMLElement} */ (focused).dataset.name);
    (same ?? chips[at] ?? this.fields.tag.input).focus();
  }

  chipParts() {
    const set = FILTERS.filter((name) => this.filter[name] !== null);
    if (set.length === 0) return [];
    return [...set.map((name) => {
      const value = /** @type {string} */ (this.filter[name]);
      return h("button", {
        type: "button", class: "chip on", title: t("letters.drop"), "data-name": name,
        onclick: () => this.go({ ...this.filter, [name]: null }),
      }, h("span", { class: "chip-text" }, `${t(`letters.${name}`)}: ${wordOf(name, value)}`), h("span", { "aria-hidden": "true" }, "×"));
    }), h("a", { class: "small", href: href("letters") }, t("letters.all_groups"))];
  }

  /** @param {Typed} name */
  field(name) {
    return new FilterField(name, this.filter[name], () => this.drawBulk(), (text) => {
      if ((this.filter[name] ?? "") === text) {
        this.drawBulk();
        return;
      }
      const filter = { ...this.filter, [name]: text || null };
      replacePlace(href("letters", [], placeOf(filter)));
      this.take(filter, null);
    });
  }

  /** @param {LetterGroup} group */
  choose(group) {
    this.settle();
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
    const words = optionsOf(this.filter);
    const command = this.letter !== null ? `pyoco-client dlq show ${shellWord(this.letter)}`
      : words === null ? null
        : words.length === 0 ? "pyoco-client dlq counts --output table" : `pyoco-client dlq list ${words.join(" ")} --output table`;
    refill(this.command, command, () => (command === null ? [] : [commandBox(command)]));
  }
}

/** A line of text that narrows the letters down, once somebody has typed it. */
class FilterField {
  /**
   * @param {Typed} name
   * @param {string | null} value
   * @param {() => void} begun another text than the one that was taken stands there
   * @param {(text: string) => void} take
   */
  constructor(name, value, begun, take) {
    this.typing = afterTyping((text) => {
      // A run is asked for by its whole id: part of one finds nothing, and would say so while somebody still types.
      const isPart = name === "run_id" && text !== "" && text.length < WHOLE_ID;
      write(this.hint, isPart ? t("letters.run_id_part") : "");
      if (isPart) return;
      this.taken = text;
      take(text);
    }, begun);
    this.input = h("input", { type: "search", name, maxlength: "200", autocomplete: "off", spellcheck: "false", ...this.typing.listen });
    this.hint = h("span", { class: "small mark", role: "status" });
    this.element = h("div", { class: "filter-field" },
      h("label", { class: "filter-field" }, h("span", { class: "small dim" }, t(`letters.${name}`)), this.input), this.hint);
    this.taken = "";
    this.show(value);
  }

  /** @param {string | null} value */
  show(value) {
    this.typing.cancel();
    write(this.hint, "");
    this.input.value = value ?? "";
    this.taken = this.input.value.trim();
  }

  /** Whether what stands there is looked for. */
  isTaken() {
    return this.input.value.trim() === this.taken;
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
      h("span", { class: "small dim" }, whyWords(reason, group.flow_name)),
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
