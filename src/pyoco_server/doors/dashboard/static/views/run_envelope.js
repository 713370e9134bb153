// The envelope of a priced run: read once it has completed, with the key of its tenant, and shown so that people can
// read it.

import { Refused, Unreachable, download, get } from "../lib/api.js";
import { act } from "../lib/act.js";
import { h, put } from "../lib/dom.js";
import { filesOf, plain, signedAddress } from "../lib/envelope.js";
import { bytes, dateTime, percent } from "../lib/format.js";
import { t } from "../lib/i18n.js";
import { icon } from "../lib/icons.js";
import { parseJson } from "../lib/numbers.js";
import { actButton, button, card, copy, facts, iconButton, longText, skeleton } from "../lib/parts.js";
import { isObject, jsonText, textOf } from "../lib/run_facts.js";
import { save } from "../lib/save.js";
import { currentKey, forgetKey, useKey } from "../lib/session.js";
import { settings } from "../lib/settings.js";
import { toast } from "../lib/toast.js";
import { dataParts } from "./envelope_packs.js";
import { part, table } from "./envelope_parts.js";

/** @typedef {import("../lib/wire.js").Run} Run */
/** @typedef {import("../lib/envelope.js").FileFacts} FileFacts */
/** @typedef {import("../lib/i18n.js").TextKey} TextKey */

const TIMEOUT_MS = 30_000;
const SHORT = 12;

/** @type {Record<number, TextKey>} */
const REFUSALS = {
  401: "envelope.no.key", 404: "envelope.no.run", 410: "envelope.no.retention", 422: "envelope.no.end", 429: "envelope.no.rate",
};
/** With another key, or the first one, it may be opened. */
const OF_KEYS = new Set([401, 404]);
/** Asking again may help. */
const FOR_NOW = new Set([422, 429]);

export class EnvelopeSection {
  /** @param {import("./run_kinds.js").RunPage} page */
  constructor(page) {
    this.id = page.id;
    this.tenant = "";
    /** Of 0 to 1, as it was submitted. @type {number | null} */
    this.wanted = null;
    this.isAsked = false;
    this.stopping = new AbortController();
    this.actions = h("div", { class: "chips" });
    this.status = h("div", { role: "status" });
    this.body = h("div", { class: "env-body" });
    this.element = card(t("envelope.title"), { class: "run-envelope", actions: this.actions }, this.status, this.body);
    this.element.hidden = true;
  }

  close() {
    this.stopping.abort();
  }

  /** @param {Run} run */
  show(run) {
    this.element.hidden = run.status !== "COMPLETED" || (run.gone_at !== undefined && !this.isAsked);
    if (this.element.hidden || this.isAsked) return;
    this.isAsked = true;
    this.tenant = textOf(run.tenant_id);
    this.wanted = typeof run.min_reliability_score === "number" ? run.min_reliability_score : null;
    if (settings.asksForKey || currentKey() !== null) void this.read();
    else this.askForKey("");
  }

  /** Once; what comes of it is shown. */
  async read() {
    put(this.actions);
    put(this.status, h("p", { class: "unseen" }, t("envelope.loading")));
    put(this.body, skeleton(4));
    try {
      const signal = AbortSignal.any([this.stopping.signal, AbortSignal.timeout(TIMEOUT_MS)]);
      const file = await download(`v1/runs/${encodeURIComponent(this.id)}/envelope`, () => {}, signal);
      const text = await file.text();
      if (!this.stopping.signal.aborted) this.tell(file, parsed(text));
    } catch (error) {
      if (this.stopping.signal.aborted) return;
      if (error instanceof Refused) this.refused(error);
      else if (error instanceof Unreachable) this.failed(t("envelope.no.answer"), true);
      else throw error;
    }
  }

  /** @param {Refused} error */
  refused(error) {
    const known = REFUSALS[error.status];
    const words = known ? t(known, { tenant: plain(this.tenant) }) : t("envelope.no.store", { words: error.words });
    if (OF_KEYS.has(error.status) && !settings.asksForKey) {
      if (error.status === 401) forgetKey();
      this.askForKey(words);
    } else {
      this.failed(words, FOR_NOW.has(error.status) || error.status >= 500);
    }
  }

  /**
   * @param {string} words
   * @param {boolean} isForNow
   */
  failed(words, isForNow) {
    put(this.status, h("p", { class: "mark" }, words));
    put(this.body, isForNow ? button(t("envelope.again"), () => this.read(), { icon: "repeat" }) : null);
  }

  /**
   * Where everybody may look at everything, results are still their tenant's: nobody is who they say without a key.
   * @param {string} trouble
   */
  askForKey(trouble) {
    const input = h("input", { type: "password", autocomplete: "off", spellcheck: "false", required: true, maxlength: "512" });
    const form = h("form", {
      class: "env-key",
      onsubmit: (/** @type {Event} */ event) => {
        event.preventDefault();
        const key = input.value.trim();
        if (!/^[\x21-\x7e]+$/.test(key)) return this.askForKey(t("key.illegal"));
        useKey(key);
        void this.read();
      },
    }, h("label", { class: "field" }, h("span", null, t("key.label")), input),
    h("button", { type: "submit", class: "button primary" }, icon("key"), h("span", null, t("envelope.show"))));
    const hadFocus = this.element.contains(document.activeElement);
    put(this.actions);
    put(this.status, trouble === "" ? null : h("p", { class: "mark" }, trouble));
    put(this.body, h("p", { class: "dim" }, t("envelope.ask", { tenant: plain(this.tenant) })), form);
    if (trouble !== "" && hadFocus) input.focus();
  }

  /**
   * @param {Blob} file as it is stored, to the byte
   * @param {unknown} envelope
   */
  tell(file, envelope) {
    put(this.status, h("p", { class: "unseen" }, t("envelope.read")));
    const fetch = button(t("envelope.download"), () => save(file, `${this.id}.envelope.json`), { icon: "download" });
    const forget = settings.asksForKey ? null : button(t("envelope.forget"), () => {
      forgetKey();
      this.askForKey("");
    }, { icon: "key" });
    if (!isObject(envelope)) {
      put(this.actions, fetch, forget);
      put(this.body, h("p", { class: "mark" }, t("envelope.odd")));
      return;
    }
    const shown = this.shown(envelope);
    /** Made when somebody wants to see it. @type {HTMLElement | null} */
    let raw = null;
    const toggle = button(t("envelope.raw"), () => {
      const isRaw = toggle.getAttribute("aria-pressed") !== "true";
      toggle.setAttribute("aria-pressed", String(isRaw));
      raw ??= longText(jsonText(envelope));
      put(this.body, isRaw ? raw : shown);
    }, { pressed: false });
    put(this.actions, toggle, fetch, forget);
    put(this.body, shown);
  }

  /** @param {Record<string, unknown>} envelope */
  shown(envelope) {
    const files = filesOf(envelope);
    const names = new Set(files.map((each) => each.name));
    const offer = (/** @type {string} */ name) => (names.has(name) ? this.fileButton(name) : null);
    const meta = isObject(envelope.meta) ? envelope.meta : {};
    const at = Date.parse(textOf(envelope.generated_at)) / 1000;
    return h("div", { class: "env-parts" },
      ...dataParts(envelope, offer),
      files.length === 0 ? null : part(t("envelope.files"), this.fileTable(files)),
      facts([
        [t("envelope.reliability"), this.reliability(meta.reliability_met)],
        [t("envelope.made"), Number.isFinite(at) ? dateTime(at) : null],
      ]));
  }

  /** @param {unknown} met */
  reliability(met) {
    const words = t(met === true ? "envelope.reliability.met" : met === false ? "envelope.reliability.missed" : "envelope.reliability.unknown");
    const wanted = this.wanted === null ? "" : ` ${t("envelope.reliability.wanted", { share: percent(this.wanted) })}`;
    return h("span", { class: met === true ? "env-good" : met === false ? "env-bad" : "dim" }, words, h("span", { class: "dim" }, wanted));
  }

  /** @param {FileFacts[]} files */
  fileTable(files) {
    return table(t("envelope.files"), [
      { name: t("envelope.file.name"), class: "env-wide", show: (file) => this.fileButton(file.name) },
      { name: t("envelope.file.size"), class: "number", show: (file) => (file.size === null ? "–" : bytes(file.size)) },
      { name: t("envelope.file.kind"), show: (file) => plain(file.kind).slice(0, 130) || "–" },
      { name: "SHA-256", class: "env-hash", show: (file) => hashOf(file.sha256) },
    ], files);
  }

  /** @param {string} name */
  fileButton(name) {
    const label = plain(name);
    const element = actButton(label, () => this.fetchFile(name), { icon: "download", title: t("envelope.file.get", { name: label }) });
    element.classList.add("env-file");
    return element;
  }

  /**
   * Its address is asked for when it is wanted, since it is good for ten minutes only. It may lie on another server, which
   * this page may not talk to, and a browser may go to.
   * @param {string} name
   */
  async fetchFile(name) {
    const run = await act(() => get(`v1/runs/${encodeURIComponent(this.id)}`));
    if (run === undefined || this.stopping.signal.aborted) return;
    const files = Array.isArray(run?.result?.artifacts) ? run.result.artifacts : [];
    const found = files.find((/** @type {any} */ each) => isObject(each) && each.name === name);
    const address = signedAddress(found?.presigned_url, location.href);
    if (address === null) return toast(t("envelope.file.gone"), "danger");
    h("a", {
      href: address.href, rel: "noreferrer noopener", download: name, target: address.isOwn ? null : "_blank",
    }).click();
  }
}

/** @param {string} sha256 */
function hashOf(sha256) {
  if (sha256 === "") return "–";
  const whole = plain(sha256);
  return [h("code", { title: whole.slice(0, 200) }, whole.slice(0, SHORT)), iconButton("copy", t("envelope.file.copy"), () => copy(sha256))];
}

/** @param {string} text */
function parsed(text) {
  try {
    return parseJson(text);
  } catch {
    return null;
  }
}
