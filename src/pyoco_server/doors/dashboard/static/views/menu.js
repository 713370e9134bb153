// The way to every panel. On a narrow screen it scrolls, and shows that it does and where one is.

import { h, put, write } from "../lib/dom.js";
import { count } from "../lib/format.js";
import { t } from "../lib/i18n.js";
import { href } from "../lib/router.js";
import { panels } from "../panels.js";

export class Menu {
  constructor() {
    this.element = h("nav", { class: "menu" });
    /** @type {Map<string, { link: HTMLAnchorElement, mark: HTMLElement }>} */
    this.entries = new Map();
    /** @type {Map<string, number>} */
    this.marks = new Map();
    this.current = "";
    this.element.addEventListener("scroll", () => this.tellEnds(), { passive: true });
    new ResizeObserver(() => this.center()).observe(this.element);
  }

  draw() {
    this.element.setAttribute("aria-label", t("nav"));
    this.entries.clear();
    for (const panel of panels) {
      const mark = h("span", { class: "menu-mark number", hidden: true });
      this.entries.set(panel.id, { link: h("a", { href: href(panel.id) }, t(panel.title), mark), mark });
    }
    put(this.element, ...[...this.entries.values()].map((entry) => entry.link));
    for (const [id, marked] of this.marks) this.mark(id, marked);
  }

  /** @param {string} panel which one is open */
  show(panel) {
    for (const [id, { link }] of this.entries) {
      if (id === panel) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    this.current = panel;
    this.center();
  }

  /**
   * A number beside a panel's name; none for 0.
   * @param {string} panel
   * @param {number} marked
   */
  mark(panel, marked) {
    this.marks.set(panel, marked);
    const mark = this.entries.get(panel)?.mark;
    if (mark === undefined) return;
    mark.hidden = marked === 0;
    write(mark, marked === 0 ? "" : marked > 999 ? "999+" : count(marked));
    this.center();
  }

  /** Only the menu scrolls, not the page. */
  center() {
    const link = this.entries.get(this.current)?.link;
    if (link) this.element.scrollLeft = link.offsetLeft - (this.element.clientWidth - link.offsetWidth) / 2;
    this.tellEnds();
  }

  /** Which ends are cut off: they fade out. */
  tellEnds() {
    const { scrollLeft, scrollWidth, clientWidth } = this.element;
    this.element.classList.toggle("more-before", scrollLeft > 1);
    this.element.classList.toggle("more-after", scrollLeft + clientWidth < scrollWidth - 1);
  }
}
