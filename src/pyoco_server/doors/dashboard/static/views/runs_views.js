// Lists by name: four that everybody needs, and one's own.

import { confirm } from "../lib/act.js";
import { h, put } from "../lib/dom.js";
import { t, wordFor } from "../lib/i18n.js";
import { icon } from "../lib/icons.js";
import { iconButton } from "../lib/parts.js";
import { href } from "../lib/router.js";
import { filterText } from "../lib/run_filter.js";
import { NAME_MAX, forgetView, savedViews, saveView } from "../lib/saved_views.js";
import { toast } from "../lib/toast.js";

/** @type {{ text: import("../lib/i18n.js").TextKey, query: string }[]} */
const BUILT_IN = [
  { text: "runs.view.all", query: "" },
  { text: "runs.view.running", query: "status=RUNNING" },
  { text: "runs.view.failed", query: "status=FAILED" },
  { text: "runs.view.waiting", query: "status=PENDING" },
];

export class RunViews {
  /** @param {() => import("../lib/run_filter.js").RunFilter} current */
  constructor(current) {
    this.current = current;
    this.menu = h("div", { id: "runs-views", class: "runs-menu", popover: "auto" });
    this.button = h("button", { type: "button", class: "button", popovertarget: "runs-views" },
      icon("star"), h("span", null, t("runs.views")), icon("down"));
    this.menu.addEventListener("beforetoggle", (event) => {
      if (/** @type {ToggleEvent} */ (event).newState === "open") this.open();
    });
    this.element = h("div", null, this.button, this.menu);
  }

  open() {
    const place = this.button.getBoundingClientRect();
    this.menu.style.setProperty("top", `${place.bottom + 4}px`);
    this.menu.style.setProperty("right", `${Math.max(8, document.documentElement.clientWidth - place.right)}px`);
    this.draw();
  }

  draw() {
    const now = filterText(this.current());
    const saved = savedViews();
    put(this.menu,
      h("ul", null, ...BUILT_IN.map((view) => h("li", null, this.link(t(view.text), view.query, now)))),
      saved.length > 0 ? h("h3", null, t("runs.view.saved")) : null,
      h("ul", null, ...saved.map((view) => h("li", null, this.link(view.name, view.query, now),
        iconButton("trash", t("runs.view.delete", { name: view.name }), () => this.remove(view.name))))),
      h("button", { type: "button", class: "button quiet", onclick: () => this.save(now) }, icon("star"),
        h("span", null, t("runs.view.save"))));
  }

  /**
   * @param {string} name
   * @param {string} query
   * @param {string} now
   */
  link(name, query, now) {
    return h("a", {
      href: href("runs", [], new URLSearchParams(query)), "aria-current": query === now ? "true" : null, title: name,
      onclick: () => this.menu.hidePopover(),
    }, name);
  }

  /** @param {string} query */
  async save(query) {
    this.menu.hidePopover();
    const parts = Object.entries(this.current()).map(([name, value]) => `${wordFor("runs.filter", name)}: ${value}`);
    const said = await confirm({
      title: t("runs.view.save"), body: h("p", { class: "dim" }, parts.join(" · ") || t("runs.view.all")),
      yes: t("runs.view.save.yes"), ask: t("runs.view.name", { n: NAME_MAX }),
    });
    if (said === null || said.text === "") return;
    saveView({ name: said.text, query });
    toast(t("runs.view.kept", { name: said.text.slice(0, NAME_MAX) }));
  }

  /** @param {string} name */
  remove(name) {
    forgetView(name);
    this.draw();
    this.menu.querySelector("button")?.focus();
  }
}
