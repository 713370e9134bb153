// Who works, who is busy with what, and who has gone.

import { get, Refused } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { inOrder, summary, texts } from "../lib/fleet.js";
import { count } from "../lib/format.js";
import { t } from "../lib/i18n.js";
import { KeyedList } from "../lib/keyed.js";
import { button, commandBox, nothing, refill, shellWord } from "../lib/parts.js";
import { poll } from "../lib/poll.js";
import { href } from "../lib/router.js";
import { afterTyping, bringIntoView, Region, replacePlace, rowsHead } from "./fleet_parts.js";
import { WorkerRow } from "./workers_row.js";

/** @typedef {import("../lib/wire.js").Worker} Worker */
/** @typedef {import("../lib/router.js").Place} Place */

/** Slots fill and empty within seconds; the answer is one scan of a small bucket. */
const POLL_SECONDS = 3;
/** Those that are gone change rarely: they are counted every so many turns. */
const GONE_EVERY = 5;
const TAGS_MAX = 200;
/** The gateway tells of no more, those heard of last first. */
const WORKERS_MAX = 500;

/**
 * @param {Place} place
 * @returns {import("../panels.js").View}
 */
export function openWorkers(place) {
  const view = new Workers(place);
  return { element: view.element, moved: (to) => view.moved(to), close: () => view.close() };
}

/**
 * @typedef {object} Asked
 * @property {"all" | null} scope
 * @property {"1" | null} hidden
 * @property {string | null} tag
 * @property {string | null} worker
 */

/**
 * @param {Place} place
 * @returns {Asked}
 */
function readAsked(place) {
  return {
    scope: place.query.get("scope") === "all" ? "all" : null,
    hidden: place.query.get("hidden") === "1" ? "1" : null,
    tag: place.query.get("tag") || null,
    worker: place.rest[0] ?? (place.query.get("worker") || null),
  };
}

class Workers {
  /** @param {Place} place */
  constructor(place) {
    this.asked = readAsked(place);
    this.turn = 0;
    this.gone = 0;
    /** @type {Set<string>} */
    this.tags = new Set();
    this.wantsLook = this.asked.worker !== null;
    this.summary = h("p", { class: "summary" });
    this.heading = h("h1", { tabindex: "-1" }, t("workers.title"));
    this.region = new Region();
    this.command = h("div");
    /** @type {KeyedList<Worker>} */
    this.list = new KeyedList(h("div", { class: "row-list", role: "list" }), (worker) => String(worker.worker_id),
      () => new WorkerRow((id) => this.toggle(id), () => this.poll.soon()));
    this.note = h("div", { class: "note-line" });
    this.chips = {
      active: chip(t("workers.scope_active"), () => this.go({ scope: null })),
      all: chip(t("workers.scope_all"), () => this.go({ scope: "all" })),
      hidden: chip(t("workers.include_hidden"), () => this.go({ hidden: this.asked.hidden === null ? "1" : null })),
    };
    this.typing = afterTyping((text) => this.retag(text));
    this.options = h("datalist", { id: "workers-tags" });
    this.field = h("input", {
      type: "search", list: "workers-tags", maxlength: "128", autocomplete: "off", spellcheck: "false",
      placeholder: t("workers.tag_any"), ...this.typing.listen,
    });
    this.drawFilters();
    this.element = h("div", { class: "view workers" },
      h("div", { class: "view-head" }, this.heading, this.summary),
      this.filters(), this.note, this.region.element, this.command);
    this.poll = poll(POLL_SECONDS, (signal) => this.region.guard(() => this.look(signal)));
  }

  close() {
    this.poll.stop();
    this.typing.cancel();
  }

  /** @param {Place} place */
  moved(place) {
    if (place.panel !== "workers") return false;
    const before = this.asked;
    this.asked = readAsked(place);
    this.wantsLook = this.asked.worker !== null && this.asked.worker !== before.worker;
    this.typing.cancel();
    this.drawFilters();
    this.poll.soon();
    return true;
  }

  filters() {
    return h("div", { class: "filters" },
      h("div", { class: "chips", role: "group", "aria-label": t("workers.scope") }, this.chips.active, this.chips.all, this.chips.hidden),
      h("label", { class: "filter-field" }, h("span", { class: "small dim" }, t("workers.tag")), this.field, this.options));
  }

  drawFilters() {
    const { scope, hidden, tag } = this.asked;
    this.chips.active.setAttribute("aria-pressed", String(scope === null));
    this.chips.all.setAttribute("aria-pressed", String(scope === "all"));
    this.chips.hidden.setAttribute("aria-pressed", String(hidden !== null));
    this.field.value = tag ?? "";
  }

  /** @param {Partial<Asked>} change */
  go(change) {
    this.typing.settle();
    location.hash = href("workers", [], { ...this.asked, ...change });
  }

  /** @param {string} text */
  retag(text) {
    if ((this.asked.tag ?? "") === text) return;
    this.asked = { ...this.asked, tag: text || null };
    replacePlace(href("workers", [], this.asked)); // who types is on the way: each letter is no place to go back to
    this.poll.soon();
  }

  /** @param {AbortSignal} signal */
  async look(signal) {
    const { scope, hidden, tag, worker } = this.asked;
    const query = { scope: scope ?? "active", include_hidden: hidden === null ? null : true, tag };
    /** @type {Worker[]} */
    const found = await get("workers", query, signal);
    const listed = Array.isArray(found) ? found : [];
    if (scope === null && this.turn % GONE_EVERY === 0) await this.countGone(signal);
    this.turn += 1;
    const wanted = worker === null || listed.some((each) => each.worker_id === worker) ? null : await this.lookFor(worker, signal);
    if (JSON.stringify(this.asked) !== JSON.stringify({ scope, hidden, tag, worker })) return; // moved on meanwhile; the next turn is under way
    this.show(listed, wanted);
  }

  /** @param {AbortSignal} signal */
  async countGone(signal) {
    const gone = await get("workers", { scope: "all", state: "DISCONNECTED", tag: this.asked.tag }, signal);
    this.gone = Array.isArray(gone) ? gone.length : 0;
  }

  /**
   * The one in the address, though the list leaves it out: hidden, stopped or gone.
   * @param {string} id
   * @param {AbortSignal} signal
   * @returns {Promise<Worker | null>}
   */
  async lookFor(id, signal) {
    try {
      return await get(`workers/${encodeURIComponent(id)}`, {}, signal);
    } catch (error) {
      if (error instanceof Refused && error.status === 404) return null;
      throw error;
    }
  }

  /**
   * @param {Worker[]} listed
   * @param {Worker | null} wanted
   */
  show(listed, wanted) {
    const { worker } = this.asked;
    const shown = wanted === null ? inOrder(listed) : [wanted, ...inOrder(listed)];
    this.tell(listed);
    for (const tag of shown.flatMap((each) => texts(each.tags))) this.learnTag(tag);
    const isMissing = worker !== null && !shown.some((each) => each.worker_id === worker);
    refill(this.note, [isMissing, worker], () => (isMissing
      ? [h("p", { class: "mark" }, t("workers.unknown", { id: String(worker).slice(0, 200) })),
        this.allButton({ worker: null })] : []));
    if (shown.length === 0) this.region.show(`nothing ${JSON.stringify(this.asked)}`, () => [this.empty()]);
    else this.region.show("list", () => [h("div", { class: "rows workers-rows" }, rowsHead([
      t("workers.state"), t("workers.worker"), t("workers.slots"), t("workers.runs"), t("workers.heard"), t("workers.wheels"),
    ]), this.list.element)]);
    this.list.show(shown);
    this.openWanted();
    refill(this.command, this.asked, () => [commandBox(commandFor(this.asked))]);
  }

  openWanted() {
    const row = /** @type {WorkerRow | undefined} */ (this.list.rows.get(this.asked.worker ?? ""));
    for (const each of this.list.rows.values()) /** @type {WorkerRow} */ (each).expand(each === row);
    if (row && this.wantsLook) bringIntoView(row.element.firstElementChild);
    if (row) this.wantsLook = false;
  }

  /** @param {string} tag */
  learnTag(tag) {
    if (this.tags.has(tag) || this.tags.size >= TAGS_MAX) return;
    this.tags.add(tag);
    this.options.append(h("option", { value: tag }));
  }

  /** @param {Worker[]} listed */
  tell(listed) {
    const { alive, slots, busy, gone: goneHere } = summary(listed);
    const gone = this.asked.scope === null ? this.gone : goneHere;
    refill(this.summary, [alive, slots, busy, gone, listed.length, this.asked], () => [
      h("strong", null, t("workers.alive", { n: count(alive) })),
      listed.length < WORKERS_MAX ? null : ` (${t("workers.cut", { n: count(WORKERS_MAX) })})`,
      " · ", t("workers.busy", { busy: count(busy), slots: count(slots) }),
      gone === 0 ? null : " · ",
      gone === 0 ? null : h("a", { class: "bad-word", href: href("workers", [], { ...this.asked, scope: "all" }) },
        t("workers.gone", { n: count(gone) })),
    ]);
  }

  /** @param {string} id */
  toggle(id) {
    this.asked = { ...this.asked, worker: this.asked.worker === id ? null : id };
    replacePlace(href("workers", [], this.asked));
    this.openWanted();
    refill(this.command, this.asked, () => [commandBox(commandFor(this.asked))]);
  }

  /**
   * It goes when it was pressed, so the focus goes first.
   * @param {Partial<Asked>} change
   */
  allButton(change) {
    return button(t("workers.all"), () => {
      this.heading.focus({ preventScroll: true });
      this.go(change);
    });
  }

  empty() {
    const { scope, tag } = this.asked;
    if (tag !== null) {
      return nothing(t("workers.none_tag", { tag }), h("p", null, t("workers.none_start")),
        commandBox(`pyoco-worker --flow-resolver MODULE:CALLABLE --tags ${shellWord(tag)}`),
        this.allButton({ tag: null }));
    }
    return nothing(t("workers.none"), h("p", null, t("workers.none_start")),
      commandBox("pyoco-worker --flow-resolver my_flows:resolve"),
      scope === "all" ? null : h("a", { href: href("workers", [], { scope: "all" }) }, t("workers.none_all")));
  }
}

/**
 * @param {string} label
 * @param {() => void} onclick
 */
function chip(label, onclick) {
  return h("button", { type: "button", class: "chip", onclick }, label);
}

/** @param {Asked} asked */
function commandFor({ scope, hidden, tag, worker }) {
  if (worker !== null) return `pyoco-client worker show ${shellWord(worker)}`;
  const words = ["pyoco-client worker list", scope === null ? "" : "--scope all", hidden === null ? "" : "--include-hidden"];
  return [...words, tag === null ? "" : `--tag ${shellWord(tag)}`, "--output table"].filter(Boolean).join(" ");
}
