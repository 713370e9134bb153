// The tasks as a picture: boxes with their state, and lines to what waits for them.

import { now, ticks } from "../lib/clock.js";
import { layOut, TASKS_MAX } from "../lib/dag.js";
import { h, put, svg, write } from "../lib/dom.js";
import { count, span } from "../lib/format.js";
import { t, wordFor } from "../lib/i18n.js";
import { card, iconButton, statusIcon } from "../lib/parts.js";
import { instant, isObject, isOver, recordOf, stateOf, taskNames, waits } from "../lib/run_facts.js";

/** @typedef {import("../lib/wire.js").Run} Run */
/** @typedef {import("../lib/dag.js").Layout} Layout */
/**
 * @typedef {object} Node
 * @property {import("../lib/dag.js").Box} box
 * @property {SVGGElement} group
 * @property {SVGGElement} picture
 * @property {SVGTextElement} time
 * @property {string} made          what it shows
 */

const BOX = { width: 184, height: 44, gapX: 52, gapY: 14 };
/** Room for the outline of a box with focus. */
const EDGE = 6;
const SCALE_MIN = 0.25;
/** Smaller than this nothing can be read: then it scrolls. */
const FIT_MIN = 0.6;

export class DagSection {
  /** @param {import("./run_kinds.js").RunPage} page */
  constructor(page) {
    this.page = page;
    /** @type {Map<string, Node>} */
    this.nodes = new Map();
    this.made = "";
    /** @type {Layout | null} */
    this.layout = null;
    /** @type {number | null} null: as fits */
    this.scale = null;
    this.note = h("p", { class: "dim", hidden: true });
    this.picture = svg("svg", { class: "dag", role: "group", "aria-label": t("run.graph.label") });
    this.frame = h("div", { class: "dag-frame" }, this.picture);
    this.tools = h("div", { class: "chips" },
      iconButton("minus", t("run.graph.out"), () => this.zoom(0.8)),
      iconButton("plus", t("run.graph.in"), () => this.zoom(1.25)),
      iconButton("fit", t("run.graph.fit"), () => this.zoom(null)));
    this.element = card(t("run.graph"), { class: "run-graph", actions: this.tools }, this.note, this.frame);
    this.picture.addEventListener("click", (event) => this.onClick(event));
    this.picture.addEventListener("keydown", (event) => this.onKey(event));
    this.frame.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    this.frame.addEventListener("pointerdown", (event) => this.drag(event));
    this.watching = new ResizeObserver(() => this.size());
    this.watching.observe(this.frame);
    /** @type {Map<string, number>} since when; these alone change with time */
    this.running = new Map();
    this.unfollow = page.selected.follow(() => this.mark());
    this.unfollowTicks = ticks.follow(() => this.tick());
  }

  close() {
    this.unfollowTicks();
    this.watching.disconnect();
    this.unfollow();
  }

  /** @param {Run} run */
  show(run) {
    const graph = isObject(run.graph) ? run.graph : null;
    const names = taskNames(run);
    const drawn = graph !== null && names.length <= TASKS_MAX && names.length > 0;
    this.note.hidden = this.frame.hidden = this.tools.hidden = false;
    if (drawn) this.note.hidden = true;
    else this.frame.hidden = this.tools.hidden = true;
    this.note.textContent = graph === null ? t(noGraph(run)) : t("run.graph.many", { n: count(names.length) });
    this.element.hidden = names.length === 0;
    if (!drawn) return;
    const made = JSON.stringify([graph, names]);
    if (made !== this.made) {
      this.made = made;
      this.draw(layOut(graph, names, BOX));
    }
    for (const name of this.nodes.keys()) this.paint(name, run);
    this.tick();
  }

  /** @param {Layout} layout */
  draw(layout) {
    this.layout = layout;
    this.running.clear();
    const held = document.activeElement instanceof SVGElement ? document.activeElement.getAttribute("data-task") : null;
    const cut = cutter();
    this.nodes = new Map(layout.boxes.map((box) => [box.name, makeNode(box, cut(box.name, BOX.width - 46))]));
    const ends = svg("defs", null, svg("marker", {
      id: "dag-end", viewBox: "0 0 8 8", refX: "7", refY: "4", markerWidth: "9", markerHeight: "9", orient: "auto",
      markerUnits: "userSpaceOnUse",
    }, svg("path", { d: "M0.5 0.5 7 4 0.5 7.5Z" })));
    const lines = layout.lines.map((line) => svg("path", {
      class: "dag-line", d: line.path, "data-from": line.from, "data-to": line.to, "marker-end": "url(#dag-end)",
    }));
    const groups = [...this.nodes.values()].map((node) => node.group);
    put(this.picture, ends, svg("g", { "aria-hidden": "true" }, ...lines), ...groups);
    const chosen = this.page.selected.value;
    this.rove(chosen !== null && this.nodes.has(chosen) ? chosen : layout.boxes[0]?.name ?? "");
    if (held !== null) this.nodes.get(held)?.group.focus();
    this.size();
    this.mark();
  }

  /**
   * @param {string} name
   * @param {Run} run
   */
  paint(name, run) {
    const node = /** @type {Node} */ (this.nodes.get(name));
    const state = stateOf(run, name);
    const record = recordOf(run, name);
    const from = state === "RUNNING" && !isOver(run) ? instant(record?.started_at) : null;
    if (from === null) this.running.delete(name);
    else this.running.set(name, from);
    const took = typeof record?.duration_ms === "number" ? span(record.duration_ms / 1000) : "";
    const made = `${state}\n${took}`;
    if (node.made === made) return;
    node.made = made;
    const word = wordFor("status", state);
    node.group.setAttribute("class", `dag-node status-${state.toLowerCase()}`);
    node.group.setAttribute("aria-label", [name, word, took].filter(Boolean).join(", "));
    const image = statusIcon(state);
    image.setAttribute("width", "16");
    image.setAttribute("height", "16");
    put(node.picture, image);
    node.time.textContent = [word, took].filter(Boolean).join(" · ");
  }

  tick() {
    for (const [name, from] of this.running) {
      const node = this.nodes.get(name);
      const words = [wordFor("status", "RUNNING"), span(Math.max(0, Math.floor(now() - from)))].join(" · ");
      if (node) write(node.time, words);
    }
  }

  mark() {
    const chosen = this.page.selected.value;
    for (const [name, node] of this.nodes) node.group.setAttribute("aria-pressed", String(name === chosen));
    for (const line of this.picture.querySelectorAll(".dag-line")) {
      const { from, to } = /** @type {SVGElement} */ (line).dataset;
      line.classList.toggle("on", chosen !== null && (from === chosen || to === chosen));
    }
  }

  /** @param {Event} event */
  onClick(event) {
    const name = nameAt(event);
    if (name === null) return;
    this.rove(name);
    this.page.selected.set(this.page.selected.value === name ? null : name);
  }

  /** One stop of the tab key for all boxes; arrows go on from there. @param {KeyboardEvent} event */
  onKey(event) {
    const name = nameAt(event);
    if (name === null) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.page.selected.set(this.page.selected.value === name ? null : name);
      return;
    }
    const next = this.neighbour(name, event.key);
    if (next === null) return;
    event.preventDefault();
    this.rove(next);
    this.nodes.get(next)?.group.focus();
  }

  /** @param {string} name */
  rove(name) {
    for (const [each, node] of this.nodes) node.group.setAttribute("tabindex", each === name ? "0" : "-1");
  }

  /**
   * The nearest box in that direction. O(n), on a key.
   * @param {string} name
   * @param {string} key
   */
  neighbour(name, key) {
    const here = this.nodes.get(name)?.box;
    const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[key];
    if (here === undefined || step === undefined) return null;
    const [dx = 0, dy = 0] = step;
    let best = null;
    let nearest = Infinity;
    for (const { box } of this.nodes.values()) {
      if (dx !== 0 ? box.layer !== here.layer + dx : box.layer !== here.layer || (box.y - here.y) * dy <= 0) continue;
      const away = Math.abs(box.y - here.y);
      if (away < nearest) [best, nearest] = [box.name, away];
    }
    return best;
  }

  /** @param {number | null} by null: as fits */
  zoom(by) {
    this.scale = by === null ? null : Math.min(2, Math.max(SCALE_MIN, this.shown() * by));
    this.size();
  }

  shown() {
    const room = this.frame.clientWidth;
    const width = (this.layout?.width ?? 0) + 2 * EDGE;
    return this.scale ?? Math.min(1, Math.max(FIT_MIN, room > 0 ? room / width : 1));
  }

  size() {
    if (this.layout === null) return;
    const width = this.layout.width + 2 * EDGE;
    const height = this.layout.height + 2 * EDGE;
    const scale = this.shown();
    this.picture.setAttribute("viewBox", `${-EDGE} ${-EDGE} ${width} ${height}`);
    this.picture.setAttribute("width", String(Math.floor(width * scale)));
    this.picture.setAttribute("height", String(Math.floor(height * scale)));
  }

  /** @param {WheelEvent} event */
  onWheel(event) {
    if (!event.ctrlKey) return; // the page's own scrolling, and that of the frame
    event.preventDefault();
    this.zoom(event.deltaY < 0 ? 1.1 : 1 / 1.1);
  }

  /** Move the picture by its ground, with a mouse; a finger scrolls it anyway. @param {PointerEvent} event */
  drag(event) {
    if (event.pointerType !== "mouse" || event.button !== 0 || nameAt(event) !== null) return;
    const frame = this.frame;
    const [x, y, left, top] = [event.clientX, event.clientY, frame.scrollLeft, frame.scrollTop];
    const ending = new AbortController();
    frame.setPointerCapture(event.pointerId);
    frame.addEventListener("pointermove", (moved) => {
      frame.scrollLeft = left - (moved.clientX - x);
      frame.scrollTop = top - (moved.clientY - y);
    }, { signal: ending.signal });
    for (const end of ["pointerup", "pointercancel"]) {
      frame.addEventListener(end, () => ending.abort(), { signal: ending.signal });
    }
  }
}

/**
 * @param {import("../lib/dag.js").Box} box
 * @param {string} label
 * @returns {Node}
 */
function makeNode(box, label) {
  const picture = svg("g", { transform: "translate(11 14)" });
  const time = svg("text", { class: "dag-time", x: "36", y: "34" });
  const group = svg("g", {
    class: "dag-node", role: "button", tabindex: "-1", "data-task": box.name,
    transform: `translate(${Math.round(box.x)} ${Math.round(box.y)})`,
  }, svg("title", null, box.name), svg("rect", { width: BOX.width, height: BOX.height, rx: 7 }), picture,
  svg("text", { class: "dag-name", x: "36", y: "18" }, label), time);
  return { box, group, picture, time, made: "" };
}

/** @param {Event} event */
function nameAt(event) {
  const node = event.target instanceof Element ? event.target.closest(".dag-node") : null;
  return node?.getAttribute("data-task") ?? null;
}

/** SVG has no ellipsis: cut what is wider than its box. O(log n) measurements for a name of n characters. */
function cutter() {
  const brush = document.createElement("canvas").getContext("2d");
  if (brush !== null) brush.font = `600 13px ${getComputedStyle(document.body).fontFamily}`;
  return (/** @type {string} */ name, /** @type {number} */ room) => {
    const wide = (/** @type {string} */ text) => (brush === null ? text.length * 7 : brush.measureText(text).width);
    const letters = [...name.slice(0, 200)];
    if (letters.length === name.length && wide(name) <= room) return name;
    let fits = 0;
    let not = letters.length;
    while (not - fits > 1) {
      const tried = (fits + not) >> 1;
      if (wide(`${letters.slice(0, tried).join("")}…`) <= room) fits = tried;
      else not = tried;
    }
    return `${letters.slice(0, fits).join("")}…`;
  };
}

/**
 * Why there is none: nobody has built the flow yet, or whoever did left it out.
 * @param {Run} run
 */
function noGraph(run) {
  return waits(run) ? "run.graph.none" : "run.graph.left_out";
}
