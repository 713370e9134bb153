// What happened to jobs, the newest first. Read when somebody asks for it: the gateway looks through its history then.

import { Refused, Unreachable, get } from "../lib/api.js";
import { h, put } from "../lib/dom.js";
import { list } from "../lib/fleet.js";
import { shortId } from "../lib/format.js";
import { t, wordFor } from "../lib/i18n.js";
import { actButton, since } from "../lib/parts.js";
import { isTrouble } from "../lib/poll.js";
import { href } from "../lib/router.js";
import { textOf } from "../lib/run_facts.js";

/** @typedef {import("../lib/wire.js").ExecEvent} ExecEvent */

export class EventsList {
  /** @param {() => import("../lib/api.js").Query} query which of them */
  constructor(query) {
    this.query = query;
    this.stopping = new AbortController();
    this.button = actButton(t("programs.events.show"), () => this.look(), { icon: "repeat" });
    this.body = h("div", { class: "stack", role: "status" });
    this.element = h("div", { class: "stack program-events" }, h("div", { class: "row-actions" }, this.button), this.body);
  }

  close() {
    this.stopping.abort();
  }

  async look() {
    try {
      const answer = await get("exec/events", this.query(), this.stopping.signal);
      this.show(list(answer?.items));
    } catch (error) {
      if (!isTrouble(error)) throw error;
      if (error instanceof Refused) put(this.body, h("p", { class: "mark" }, error.words));
      else if (error instanceof Unreachable) put(this.body, h("p", { class: "mark" }, t("act.unreachable")));
    }
  }

  /** @param {ExecEvent[]} events */
  show(events) {
    put(this.body, events.length === 0 ? h("p", { class: "dim" }, t("programs.events.none"))
      : h("ol", { class: "program-event-list" }, events.map(line)));
  }
}

/** @param {ExecEvent} event */
function line(event) {
  const facts = [
    textOf(event.exec_name), textOf(event.client_id), event.attempt ? t("runs.attempt", { n: event.attempt }) : "",
    textOf(event.worker_id), textOf(event.holder) === textOf(event.worker_id) ? "" : textOf(event.holder), textOf(event.detail),
  ];
  return h("li", null, h("span", { class: "small dim" }, since(event.ts)),
    h("strong", null, wordFor("programs.event", textOf(event.event))),
    event.run_id ? h("a", { class: "mono small", href: href("runs", [event.run_id]), title: event.run_id }, shortId(event.run_id)) : null,
    h("span", { class: "small" }, facts.filter(Boolean).join(" · ")));
}
