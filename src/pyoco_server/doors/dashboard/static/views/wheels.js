// Task code on its way to the workers: what is registered, who has it, and how to bring more.

import { get } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { byPackage, holders, isAlive, list } from "../lib/fleet.js";
import { bytes, count } from "../lib/format.js";
import { t } from "../lib/i18n.js";
import { icon } from "../lib/icons.js";
import { KeyedList } from "../lib/keyed.js";
import { commandBox, nothing, refill, shellWord } from "../lib/parts.js";
import { poll } from "../lib/poll.js";
import { href } from "../lib/router.js";
import { mayAct } from "../lib/act.js";
import { bringIntoView, Region, replacePlace, rowsHead } from "./fleet_parts.js";
import { WheelHistory } from "./wheels_history.js";
import { WheelRow } from "./wheels_row.js";
import { openUpload } from "./wheels_upload.js";

/** @typedef {import("../lib/wire.js").Wheel} Wheel */
/** @typedef {import("../lib/wire.js").Worker} Worker */
/** @typedef {import("../lib/router.js").Place} Place */

/** Workers look for wheels every ten seconds themselves: to ask more often would show nothing new. */
const POLL_SECONDS = 10;

/**
 * @param {Place} place
 * @returns {import("../panels.js").View}
 */
export function openWheels(place) {
  const view = new Wheels(place);
  return { element: view.element, moved: (to) => view.moved(to), close: () => view.close() };
}

class Wheels {
  /** @param {Place} place */
  constructor(place) {
    /** @type {string | null} */
    this.open = place.query.get("wheel");
    this.wantsLook = this.open !== null;
    this.summary = h("p", { class: "summary" });
    this.syncNote = h("div", { class: "sync-note" });
    this.region = new Region();
    this.command = h("div");
    /** @type {import("./wheels_row.js").About} */
    this.about = { holders: new Map(), workers: [], uploads: new Map(), newest: new Set() };
    /** @type {KeyedList<Wheel>} */
    this.list = new KeyedList(h("div", { class: "row-list", role: "list" }), (wheel) => String(wheel.name),
      (wheel) => new WheelRow(wheel, this.about, { toggle: () => this.toggle(String(wheel.name)), changed: () => this.poll.soon() }));
    this.history = new WheelHistory();
    this.upload = mayAct ? openUpload(() => this.poll.soon()) : null;
    this.drawCommand();
    this.element = h("div", { class: "view wheels" },
      h("div", { class: "view-head" }, h("h1", null, t("wheels.title")), this.summary),
      this.upload?.element, this.syncNote, this.region.element, this.command, this.history.element);
    this.poll = poll(POLL_SECONDS, (signal) => this.region.guard(() => this.look(signal)));
  }

  close() {
    this.poll.stop();
    this.upload?.close();
    for (const row of this.list.rows.values()) /** @type {WheelRow} */ (row).close();
  }

  /** @param {Place} place */
  moved(place) {
    if (place.panel !== "wheels") return false;
    this.open = place.query.get("wheel");
    this.wantsLook = this.open !== null;
    this.openWanted();
    this.drawCommand();
    return true;
  }

  /** @param {AbortSignal} signal */
  async look(signal) {
    const [wheels, workers] = await Promise.all([
      get("wheels", {}, signal), get("workers", { include_hidden: true }, signal), this.history.look(signal),
    ]);
    this.about.workers = list(workers);
    this.about.holders = holders(list(workers));
    this.about.uploads = this.history.uploads();
    this.show(list(wheels));
  }

  /** @param {Wheel[]} wheels */
  show(wheels) {
    const packages = byPackage(wheels);
    const total = wheels.reduce((sum, wheel) => sum + (wheel.size_bytes || 0), 0);
    this.about.newest = new Set(packages.map((each) => String(each.wheels[0]?.name)));
    refill(this.summary, [wheels.length, total, packages.length], () => (wheels.length === 0 ? [] : [
      t("wheels.summary", { n: count(wheels.length), packages: count(packages.length), size: bytes(total) }),
    ]));
    this.tellSync();
    if (wheels.length === 0) this.region.show("nothing", () => [empty()]);
    else this.region.show("list", () => [h("div", { class: "rows wheels-rows" }, rowsHead([
      t("wheels.wheel"), t("wheels.tags"), t("wheels.size"), t("wheels.uploaded"), t("wheels.workers"), "",
    ]), this.list.element)]);
    this.list.show(packages.flatMap((each) => each.wheels));
    this.openWanted();
  }

  tellSync() {
    const alive = this.about.workers.filter(isAlive);
    const deaf = alive.filter((worker) => !worker.wheel_sync).length;
    refill(this.syncNote, [alive.length, deaf], () => (deaf === 0 ? [] : [
      h("p", null, icon("warning"), " ", t(deaf === alive.length ? "wheels.sync_none" : "wheels.sync_some",
        { n: count(deaf), all: count(alive.length) }), " ", t("wheels.sync_how")),
      commandBox("pyoco-worker --wheel-sync"),
    ]));
  }

  openWanted() {
    const wanted = this.list.rows.get(this.open ?? "");
    for (const row of this.list.rows.values()) /** @type {WheelRow} */ (row).expand(row === wanted);
    if (wanted && this.wantsLook) bringIntoView(wanted.element.firstElementChild);
    if (wanted) this.wantsLook = false;
  }

  /** @param {string} name */
  toggle(name) {
    this.open = this.open === name ? null : name;
    replacePlace(href("wheels", [], { wheel: this.open }));
    this.openWanted();
    this.drawCommand();
  }

  drawCommand() {
    const command = this.open === null ? "pyoco-client wheel list"
      : `pyoco-client wheel history --wheel-name ${shellWord(this.open)} --output table`;
    refill(this.command, command, () => [commandBox(command)]);
  }
}

function empty() {
  return nothing(t("wheels.none"), h("p", { class: "prose" }, t("wheels.none_how")),
    commandBox("pip wheel --no-deps --wheel-dir dist ."),
    commandBox("pyoco-client wheel upload dist/my_tasks-1.0-py3-none-any.whl"));
}
