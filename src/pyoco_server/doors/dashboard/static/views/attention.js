// What an operator should look at now, above everything else.

import { get } from "../lib/api.js";
import { findingsIn, keyOf, leadsTo, lettersIn, putAside, sorted } from "../lib/attention.js";
import { now } from "../lib/clock.js";
import { reach, trouble } from "../lib/connection.js";
import { h, put, write } from "../lib/dom.js";
import { Signal } from "../lib/events.js";
import { timeOfDay } from "../lib/format.js";
import { sentence, t } from "../lib/i18n.js";
import { icon } from "../lib/icons.js";
import { button, iconButton } from "../lib/parts.js";
import { poll } from "../lib/poll.js";

/** @typedef {import("../lib/attention.js").Finding} Finding */
/** @typedef {{ element: HTMLLIElement, made: string }} Line */

/** As often as it changes: the gateway answers from memory. */
const POLL_SECONDS = 5;
const SHOWN_MAX = 3;
/** On a phone the list below matters more. */
const narrow = matchMedia("(max-width: 46rem)");
const KEPT_AS = "pyoco.attention.aside";

export class AttentionStrip {
  constructor() {
    this.spoken = h("p", { class: "unseen", role: "status" });
    this.list = h("ul", { class: "attention-list" });
    this.foot = h("div", { class: "attention-foot" });
    this.element = h("section", { class: "attention" }, this.spoken, this.list, this.foot);
    /** Of dead letters: the menu shows it, too. */
    this.letters = new Signal(0);
    /** @type {Finding[] | null} null: not known yet */
    this.findings = null;
    /** @type {string | null} what there was when it was last read aloud */
    this.said = null;
    this.at = 0;
    this.isOpen = false;
    this.aside = recalled();
    /** @type {Map<string, Line>} */
    this.lines = new Map();
    /** @type {import("../lib/poll.js").Poll | null} */
    this.poll = null;
  }

  /** In the language of the page. The first time, it also begins to ask. */
  draw() {
    this.element.setAttribute("aria-label", t("attention.title"));
    this.lines.clear();
    put(this.list);
    this.said = null;
    if (this.poll === null) {
      this.poll = poll(POLL_SECONDS, (signal) => this.ask(signal));
      for (const signal of [reach, trouble]) signal.follow(() => this.show());
      narrow.addEventListener("change", () => this.show());
    } else {
      this.show();
    }
  }

  /** Another key may see other things. */
  forget() {
    this.findings = null;
    this.isOpen = false;
    this.keep({});
    this.letters.set(0);
    this.show();
    this.poll?.soon();
  }

  /** @param {AbortSignal} signal */
  async ask(signal) {
    const answer = await get("attention", {}, signal);
    this.findings = findingsIn(answer);
    this.at = now();
    this.letters.set(lettersIn(this.findings));
    this.show();
  }

  show() {
    const { shown, hidden, aside } = sorted((this.findings ?? []).filter((each) => !isInBanner(each)), this.aside, now());
    if (this.findings !== null && reach.value === "ok") this.keep(aside);
    const all = this.isOpen ? shown : shown.slice(0, shownMax());
    const isOld = reach.value === "gateway" && this.findings !== null;
    this.element.classList.toggle("is-well", shown.length === 0 && hidden.length === 0);
    this.element.classList.toggle("is-old", isOld);
    this.showLines(all);
    this.showFoot(shown, hidden, isOld);
    this.say(shown);
  }

  /**
   * Read aloud when something came, went or became worse; not whenever a number in it has changed.
   * @param {Finding[]} shown
   */
  say(shown) {
    const said = JSON.stringify(shown.map((each) => [keyOf(each), each.level]).sort());
    if (said === this.said) return;
    this.said = said;
    write(this.spoken, shown.length === 0 ? "" : t("attention.spoken", { n: shown.length, first: sentence(shown[0] ?? {}) }));
  }

  /** @param {Finding[]} shown */
  showLines(shown) {
    const keys = new Set(shown.map(keyOf));
    for (const [key, line] of this.lines) {
      if (keys.has(key)) continue;
      line.element.remove();
      this.lines.delete(key);
    }
    shown.forEach((finding, place) => {
      const key = keyOf(finding);
      const made = JSON.stringify([finding.level, sentence(finding), leadsTo(finding)]);
      const line = this.lines.get(key) ?? { element: h("li", null), made: "" };
      if (line.made !== made) fillLine(line.element, finding, () => this.dismiss(key));
      this.lines.set(key, { element: line.element, made });
      if (this.list.children[place] !== line.element) this.list.insertBefore(line.element, this.list.children[place] ?? null);
    });
    this.list.hidden = shown.length === 0;
  }

  /**
   * @param {Finding[]} shown
   * @param {Finding[]} hidden
   * @param {boolean} isOld
   */
  showFoot(shown, hidden, isOld) {
    const rest = shown.length - shownMax();
    const isWell = this.findings?.length === 0;
    const words = [
      isWell ? t("attention.well") : "",
      isOld ? t("attention.old", { at: timeOfDay(this.at) }) : "",
      rest > 0 ? t(this.isOpen ? "attention.less" : "attention.more", { n: rest }) : "",
      hidden.length > 0 ? t("attention.hidden", { n: hidden.length }) : "",
    ];
    // Written anew only when it says something else: focus stays on its buttons.
    const made = JSON.stringify(words);
    if (this.foot.dataset.made === made) return;
    this.foot.dataset.made = made;
    const [well = "", old = "", more = "", aside = ""] = words;
    put(this.foot,
      well ? h("span", { class: "attention-well" }, icon("completed"), well) : null,
      old ? h("span", { class: "attention-age" }, icon("pending"), old) : null,
      more ? this.moreButton(more) : null,
      aside ? button(aside, () => this.showAll(), { kind: "quiet", icon: "eye" }) : null);
    this.foot.hidden = words.every((word) => word === "");
  }

  /** @param {string} words */
  moreButton(words) {
    const element = button(words, () => {
      this.isOpen = !this.isOpen;
      this.show();
      /** @type {HTMLElement | null} */ (this.foot.querySelector(".attention-more"))?.focus();
    }, { kind: "quiet", icon: "down" });
    element.classList.add("attention-more");
    element.setAttribute("aria-expanded", String(this.isOpen));
    return element;
  }

  /** @param {string} key */
  dismiss(key) {
    const finding = this.findings?.find((each) => keyOf(each) === key);
    if (finding === undefined) return;
    const place = [...this.lines.keys()].indexOf(key);
    this.keep(putAside(finding, this.aside, now()));
    this.show();
    const left = this.list.querySelectorAll("button");
    const next = left[Math.min(place, left.length - 1)] ?? this.foot.querySelector("button");
    /** @type {HTMLElement | null | undefined} */ (next)?.focus();
  }

  showAll() {
    this.keep({});
    this.show();
    this.list.querySelector("button")?.focus();
  }

  /** @param {import("../lib/attention.js").Aside} aside */
  keep(aside) {
    this.aside = aside;
    try {
      const text = JSON.stringify(aside);
      if (text === "{}") sessionStorage.removeItem(KEPT_AS);
      else sessionStorage.setItem(KEPT_AS, text);
    } catch {
      // Kept until the page is closed or loaded again, then.
    }
  }
}

/**
 * The line above says it already.
 * @param {Finding} finding
 */
function isInBanner(finding) {
  return finding.kind === "nats_down" && reach.value === "nats" && trouble.value === "nats";
}

function shownMax() {
  return narrow.matches ? 1 : SHOWN_MAX;
}

/**
 * @param {HTMLLIElement} element
 * @param {Finding} finding
 * @param {() => void} dismiss
 */
function fillLine(element, finding, dismiss) {
  const words = sentence(finding) || finding.kind;
  const to = leadsTo(finding);
  const inside = [
    icon(finding.level),
    h("span", { class: "unseen" }, t(`attention.${finding.level}`)),
    h("span", { class: "attention-words" }, words),
  ];
  const body = to === null ? h("span", { class: "attention-body" }, inside) : h("a", { class: "attention-body", href: to }, inside);
  body.title = words;
  element.className = `attention-item ${finding.level}`;
  const hadFocus = element.contains(document.activeElement);
  put(element, body, iconButton("close", t("attention.dismiss"), dismiss));
  if (hadFocus) /** @type {HTMLElement | null} */ (element.querySelector("a, button"))?.focus();
}

/** @returns {import("../lib/attention.js").Aside} */
function recalled() {
  try {
    const kept = JSON.parse(sessionStorage.getItem(KEPT_AS) ?? "{}");
    return kept instanceof Object ? kept : {};
  } catch {
    return {};
  }
}
