// What happened to the registry, and who did it.

import { get } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { list, texts } from "../lib/fleet.js";
import { bytes } from "../lib/format.js";
import { t, wordFor } from "../lib/i18n.js";
import { icon } from "../lib/icons.js";
import { KeyedList } from "../lib/keyed.js";
import { actButton, card, refill, since } from "../lib/parts.js";
import { act } from "../lib/act.js";
import { uploader } from "./wheels_row.js";

/** @typedef {import("../lib/wire.js").WheelEvent} WheelEvent */

/** The history has no pages: more of it is asked for as a whole, up to what the gateway gives. */
const LIMITS = [20, 100, 500];

export class WheelHistory {
  constructor() {
    this.step = 0;
    /** @type {WheelEvent[]} */
    this.events = [];
    /** @type {KeyedList<WheelEvent>} */
    this.list = new KeyedList(h("ol", { class: "history" }), (event) => String(event.event_id), (event) => eventRow(event));
    this.foot = h("div");
    this.element = card(t("wheels.history"), {}, this.list.element, this.foot);
    this.element.hidden = true;
  }

  /** @param {AbortSignal} [signal] */
  async look(signal) {
    const limit = LIMITS[this.step] ?? 500;
    this.events = list(await get("wheels/history", { limit }, signal));
    this.element.hidden = this.events.length === 0;
    this.list.show(this.events);
    const isMore = this.events.length >= limit && this.step < LIMITS.length - 1;
    refill(this.foot, isMore, () => (isMore ? [actButton(t("wheels.load_more"), async () => {
      this.step += 1;
      await act(() => this.look());
    })] : []));
  }

  /** The last upload of each wheel, as far as the history goes. */
  uploads() {
    /** @type {Map<string, WheelEvent>} */
    const found = new Map();
    for (const event of this.events) {
      if (event.action === "upload" && !found.has(event.wheel_name)) found.set(event.wheel_name, event);
    }
    return found;
  }
}

/** @param {WheelEvent} event */
function eventRow(event) {
  const action = String(event.action);
  const tags = texts(event.tags);
  const element = h("li", null,
    icon(action === "delete" ? "trash" : "upload"),
    h("span", { class: "history-what" }, h("strong", null, wordFor("wheels.action", action)), " ", h("code", null, String(event.wheel_name)),
      tags.length === 0 ? null : h("span", { class: "dim" }, ` ${tags.join(", ").slice(0, 500)}`)),
    h("span", { class: "dim" }, typeof event.size_bytes === "number" ? bytes(event.size_bytes) : ""),
    h("span", { class: "dim", title: String(event.source?.user_agent ?? "").slice(0, 512) }, uploader(event)),
    h("span", { class: "dim" }, since(event.occurred_at)));
  return { element, update: () => {} };
}
