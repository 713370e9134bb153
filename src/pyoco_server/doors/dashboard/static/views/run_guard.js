// A part of a page that fails leaves the others as they are, and says so in its place.

import { h } from "../lib/dom.js";
import { t } from "../lib/i18n.js";

/** @typedef {import("../lib/wire.js").Run} Run */
/** @typedef {import("./run_kinds.js").Section} Section */

/** A section that cannot raise: what its own raises is told once, and shown as a note until it works again. */
export class Guarded {
  /** @param {Section} section */
  constructor(section) {
    this.section = section;
    this.element = section.element;
    this.note = h("p", { class: "run-defect mark" }, t("run.part_failed"));
    this.told = "";
  }

  /** @param {Run} run */
  show(run) {
    try {
      if (this.note.isConnected) this.element.hidden = false; // the section hides it again if it has to
      this.section.show(run);
      this.note.remove();
      this.told = "";
    } catch (error) {
      this.element.hidden = true;
      this.element.after(this.note);
      if (String(error) !== this.told) reportError(error); // not at each heartbeat again
      this.told = String(error);
    }
  }

  close() {
    this.section.close?.();
  }
}
