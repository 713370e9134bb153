// One wheel: a line, and who has it below.

import { download, send } from "../lib/api.js";
import { act, confirm, mayAct } from "../lib/act.js";
import { h, put, write } from "../lib/dom.js";
import { readWheelName, texts, wantedBy, whole } from "../lib/fleet.js";
import { bytes, count } from "../lib/format.js";
import { t } from "../lib/i18n.js";
import { icon } from "../lib/icons.js";
import { actButton, commandBox, copy, iconButton, refill, shellWord } from "../lib/parts.js";
import { href } from "../lib/router.js";
import { save } from "../lib/save.js";
import { cell, opener, showSince, tagLinks } from "./fleet_parts.js";

/** @typedef {import("../lib/wire.js").Wheel} Wheel */
/** @typedef {import("../lib/wire.js").WheelEvent} WheelEvent */
/** @typedef {import("../lib/dom.js").Leaf} Leaf */
/**
 * What is known beside the wheels themselves; shared by all rows, and filled anew before they are.
 * @typedef {object} About
 * @property {Map<string, import("../lib/fleet.js").Holders>} holders
 * @property {import("../lib/wire.js").Worker[]} workers
 * @property {Map<string, WheelEvent>} uploads
 * @property {Set<string>} newest
 */

/** A larger one is better fetched by a program: here it would be in memory, whole. */
const LARGE_BYTES = 200 * 1024 * 1024;
const NAMES_SHOWN = 60;

export class WheelRow {
  /**
   * @param {Wheel} wheel
   * @param {About} about
   * @param {{ toggle: () => void, changed: () => void }} tell
   */
  constructor(wheel, about, tell) {
    this.wheel = wheel;
    this.about = about;
    this.tell = tell;
    this.stopping = new AbortController();
    const name = String(wheel.name);
    const { package: package_, version, platform } = readWheelName(name);
    const title = h("span", { class: "clip", title: name }, `${package_} ${version}`);
    const opens = opener(tell.toggle, title);
    this.opener = opens.button;
    this.detail = opens.detail;
    this.marks = h("span", { class: "marks" });
    this.tags = cell(t("wheels.tags"), "tags");
    this.size = cell(t("wheels.size"), "size");
    this.at = h("span");
    this.by = h("span", { class: "small dim" });
    this.workers = cell(t("wheels.workers"), "workers");
    this.progress = h("span", { class: "small dim", role: "status" });
    this.element = h("div", { class: "row", role: "listitem" },
      h("div", { class: "row-line" },
        h("div", { class: "cell cell-name" }, h("div", { class: "name-line" }, this.opener, this.marks),
          h("span", { class: "small dim platform" }, platform)),
        this.tags.element, this.size.element, cell(t("wheels.uploaded"), "uploaded", this.at, this.by).element,
        this.workers.element,
        h("div", { class: "cell cell-actions" }, this.progress,
          actButton(t("wheels.download"), () => this.download(), { icon: "download" }),
          mayAct ? iconButton("trash", t("wheels.delete_title", { name }), () => this.remove()) : null)),
      this.detail);
  }

  close() {
    this.stopping.abort();
  }

  /** @param {Wheel} wheel */
  update(wheel) {
    this.wheel = wheel;
    const name = String(wheel.name);
    const isNewest = this.about.newest.has(name);
    refill(this.marks, isNewest, () => [h("span", { class: "tag-note", title: t(isNewest ? "wheels.newest_title" : "wheels.older_title") },
      t(isNewest ? "wheels.newest" : "wheels.older"))]);
    this.element.classList.toggle("older", !isNewest);
    const tags = texts(wheel.tags);
    refill(this.tags.value, tags, () => (tags.length === 0 ? [h("span", { class: "dim" }, t("wheels.for_all"))] : tagLinks("workers", tags)));
    write(this.size.value, bytes(whole(wheel.size_bytes)));
    showSince(this.at, wheel.modified);
    write(this.by, uploader(this.about.uploads.get(name)));
    refill(this.workers.value, this.counts(), () => this.workerWords());
    if (!this.detail.hidden) this.showDetail();
  }

  counts() {
    const told = this.about.holders.get(String(this.wheel.name));
    return {
      wanted: wantedBy(this.wheel, this.about.workers).length, has: told?.has.length ?? 0,
      failed: told?.failed.length ?? 0, installing: told?.installing.length ?? 0, skipped: told?.skipped.length ?? 0,
      isNewest: this.about.newest.has(String(this.wheel.name)),
    };
  }

  /** @returns {Leaf[]} */
  workerWords() {
    const { wanted, has, failed, installing, skipped, isNewest } = this.counts();
    if (!isNewest && has + failed + installing === 0) return [h("span", { class: "dim", title: t("wheels.older_title") }, t("wheels.not_used"))];
    if (wanted === 0 && has === 0) return [h("span", { class: "dim" }, t("wheels.nobody"))];
    return [
      h("span", null, t("wheels.has", { has: count(has), wanted: count(Math.max(wanted, has)) })),
      installing === 0 ? null : h("span", { class: "dim" }, t("wheels.installing", { n: count(installing) })),
      skipped === 0 ? null : h("span", { class: "dim" }, t("wheels.unfit", { n: count(skipped) })),
      failed === 0 ? null : h("span", { class: "badge status-failed" }, icon("failed"), t("wheels.failed", { n: count(failed) })),
    ];
  }

  /** @param {boolean} open */
  expand(open) {
    if (open !== this.detail.hidden) return;
    this.detail.hidden = !open;
    this.opener.setAttribute("aria-expanded", String(open));
    this.element.classList.toggle("open", open);
    if (open) this.showDetail();
  }

  showDetail() {
    const told = this.about.holders.get(String(this.wheel.name)) ?? { has: [], installing: [], failed: [], skipped: [] };
    refill(this.detail, [this.wheel, told], () => [
      h("dl", { class: "facts" },
        fact(t("wheels.file"), h("code", null, String(this.wheel.name))),
        this.wheel.sha256_hex ? fact("SHA-256", h("span", { class: "name-line" }, h("code", null, String(this.wheel.sha256_hex)),
          iconButton("copy", t("copy"), () => copy(String(this.wheel.sha256_hex))))) : null),
      ...named(t("wheels.has_it"), told.has), ...named(t("wheels.installs_it"), told.installing),
      ...reasons(t("wheels.failed_on"), told.failed), ...reasons(t("wheels.skipped_by"), told.skipped),
      told.has.length + told.installing.length + told.failed.length + told.skipped.length === 0
        ? h("p", { class: "dim small" }, t(this.about.newest.has(String(this.wheel.name)) ? "wheels.nobody_long" : "wheels.older_title")) : null,
      commandBox(`pyoco-client wheel download ${shellWord(String(this.wheel.name))}`),
    ]);
  }

  async download() {
    const name = String(this.wheel.name);
    if (whole(this.wheel.size_bytes) > LARGE_BYTES) {
      const sure = await confirm({
        title: t("wheels.large", { size: bytes(this.wheel.size_bytes) }), yes: t("wheels.download_anyway"),
        body: [h("p", null, t("wheels.large_note")), commandBox(`pyoco-client wheel download ${shellWord(name)}`)],
      });
      if (sure === null) return;
    }
    const { signal } = this.stopping;
    const file = await act(() => download(`wheels/${encodeURIComponent(name)}`, (loaded) => {
      write(this.progress, t("wheels.percent", { n: Math.floor((100 * loaded) / Math.max(1, this.wheel.size_bytes)) }));
    }, signal).catch((error) => {
      if (signal.aborted) return null;
      throw error;
    }));
    put(this.progress);
    if (file) save(file, name);
  }

  async remove() {
    const name = String(this.wheel.name);
    const sure = await confirm({
      title: t("wheels.delete_ask"), yes: t("wheels.delete"), danger: true,
      body: [h("p", null, h("code", null, name)), h("p", null, t("wheels.delete_note")), commandBox(`pyoco-client wheel delete ${shellWord(name)}`)],
    });
    if (sure === null) return;
    const done = await act(() => send("DELETE", `wheels/${encodeURIComponent(name)}`), () => t("wheels.deleted", { name }));
    if (done !== undefined) this.tell.changed();
  }
}

/** @param {WheelEvent | undefined} event */
export function uploader(event) {
  if (event === undefined) return "";
  const key = event.actor?.api_key_id;
  return key ? t("wheels.by_key", { key }) : event.source?.remote_addr ? t("wheels.by_address", { address: event.source.remote_addr }) : "";
}

/**
 * @param {string} name
 * @param {Leaf} value
 */
function fact(name, value) {
  return h("div", { class: "fact-wide" }, h("dt", null, name), h("dd", null, value));
}

/**
 * @param {string} title
 * @param {string[]} workers
 * @returns {Leaf[]}
 */
function named(title, workers) {
  if (workers.length === 0) return [];
  return [h("div", { class: "stack" }, h("h3", null, title), h("div", { class: "chips" },
    workers.slice(0, NAMES_SHOWN).map((id) => h("a", { class: "tag-note tag-link", href: href("workers", [], { worker: id }) }, id)),
    workers.length > NAMES_SHOWN ? h("span", { class: "dim small" }, t("fleet.more", { n: count(workers.length - NAMES_SHOWN) })) : null))];
}

/**
 * @param {string} title
 * @param {{ worker: string, why: string }[]} items
 * @returns {Leaf[]}
 */
function reasons(title, items) {
  if (items.length === 0) return [];
  return [h("div", { class: "stack" }, h("h3", null, title), h("ul", { class: "troubles" }, items.slice(0, NAMES_SHOWN).map((each) =>
    h("li", null, h("a", { href: href("workers", [], { worker: each.worker }) }, each.worker), h("span", null, each.why.slice(0, 2000))))))];
}
