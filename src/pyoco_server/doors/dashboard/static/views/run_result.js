// What a completed run has returned, at the top of its page.

import { act } from "../lib/act.js";
import { download } from "../lib/api.js";
import { h, write } from "../lib/dom.js";
import { bytes } from "../lib/format.js";
import { sentence, t } from "../lib/i18n.js";
import { actButton, card, commandBox, longText, refill } from "../lib/parts.js";
import { isObject, jsonText, textOf } from "../lib/run_facts.js";
import { save } from "../lib/save.js";

/** @typedef {import("../lib/wire.js").Run} Run */
/** @typedef {import("../lib/wire.js").RunResult} RunResult */

/** A larger one is better fetched by a program: here it would be in memory, whole. */
const LARGE_BYTES = 200 * 1024 * 1024;

export class ResultSection {
  /** @param {import("./run_kinds.js").RunPage} page */
  constructor(page) {
    this.id = page.id;
    this.stopping = new AbortController();
    this.progress = h("span", { class: "small dim number", role: "status" });
    this.button = actButton(t("run.result.download"), () => this.bring(), { icon: "download" });
    this.body = h("div", { class: "stack" });
    this.element = card(t("run.result"), {
      class: "run-result", actions: h("div", { class: "chips" }, this.progress, this.button),
    }, this.body);
    this.element.hidden = true;
    this.isJson = true;
  }

  close() {
    this.stopping.abort();
  }

  /** @param {Run} run */
  show(run) {
    const result = isObject(run.result) ? run.result : null;
    this.element.hidden = result === null || run.gone_at !== undefined;
    if (result === null) return;
    const size = typeof result.bytes === "number" ? result.bytes : null;
    this.isJson = result.content_type === "application/json";
    this.button.hidden = size === null || size > LARGE_BYTES || isObject(result.error);
    refill(this.body, result, () => this.parts(result, size));
  }

  /**
   * @param {RunResult} result
   * @param {number | null} size
   */
  parts(result, size) {
    if (isObject(result.error)) return [notKept(result.error)];
    if ("value" in result) return [longText(typeof result.value === "string" ? result.value : jsonText(result.value))];
    const preview = textOf(result.preview);
    return [
      h("p", { class: "mark" }, t("run.result.cut", { size: bytes(size ?? 0), type: textOf(result.content_type) })),
      preview === "" ? null : longText(preview),
      commandBox(`pyoco-client result ${this.id} --save ${this.isJson ? "result.json" : "result.bin"}`),
    ];
  }

  async bring() {
    const { signal } = this.stopping;
    const file = await act(() => download(`runs/${encodeURIComponent(this.id)}/result`, (loaded) => {
      write(this.progress, bytes(loaded));
    }, signal).catch((error) => {
      if (signal.aborted) return null;
      throw error;
    }));
    write(this.progress, "");
    if (file) save(file, `${this.id}.${this.isJson ? "json" : "bin"}`);
  }
}

/**
 * Where a value would be that could not be kept.
 * @param {import("../lib/wire.js").NotKept} error
 */
export function notKept(error) {
  return h("p", { class: "bad-word", role: "note" }, t("run.value.not_kept"), " ", textOf(sentence(error)),
    " ", h("code", { class: "small" }, textOf(error.err_id)));
}
