// Bring a wheel: by a button or by dropping it, with progress, and the gateway's own words when it says no.

import { Refused, Unreachable, upload } from "../lib/api.js";
import { connection } from "../lib/connection.js";
import { h, write } from "../lib/dom.js";
import { bytes } from "../lib/format.js";
import { t } from "../lib/i18n.js";
import { icon } from "../lib/icons.js";
import { button, commandBox, iconButton, shellWord } from "../lib/parts.js";
import { currentKey } from "../lib/session.js";
import { toast } from "../lib/toast.js";

/** What is told of earlier files goes when there are more. */
const RESULTS_MAX = 10;

/**
 * A file, and on whose behalf it goes out.
 * @typedef {{ file: File, tags: string, key: string | null, line: UploadLine }} Taken
 */

/** @type {WheelUpload | null} the one with something under way: going to another panel does not end it, another key does */
let busyOne = null;

/**
 * @param {() => void} changed
 * @returns {WheelUpload}
 */
export function openUpload(changed) {
  const upload = busyOne ?? new WheelUpload();
  upload.open(changed);
  return upload;
}

class WheelUpload {
  constructor() {
    this.changed = () => {};
    /** @type {Taken[]} */
    this.waiting = [];
    /** @type {Taken | null} */
    this.sending = null;
    this.busy = false;
    this.closing = new AbortController();
    this.input = h("input", {
      type: "file", accept: ".whl", multiple: true, class: "unseen", tabindex: "-1", "aria-label": t("wheels.choose"),
      onchange: () => {
        this.take(this.input.files);
        this.input.value = "";
      },
    });
    this.tags = h("input", { type: "text", maxlength: "2000", autocomplete: "off", spellcheck: "false", placeholder: t("wheels.tags_all") });
    this.results = h("div", { class: "stack", role: "status" });
    this.zone = h("div", { class: "dropzone" },
      h("div", { class: "dropzone-line" },
        icon("upload"),
        h("span", { class: "dropzone-words" }, t("wheels.drop")),
        button(t("wheels.choose"), () => this.input.click(), { kind: "primary" }), this.input,
        h("label", { class: "filter-field" }, h("span", { class: "small dim" }, t("wheels.tags_label")), this.tags)),
      this.results);
    this.element = this.zone;
  }

  /** What is under way goes on, and says how it ended. */
  close() {
    this.closing.abort();
  }

  /** @param {() => void} changed */
  open(changed) {
    this.changed = changed;
    this.closing = new AbortController();
    const { signal } = this.closing;
    const over = (/** @type {DragEvent} */ event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      this.zone.classList.add("over");
    };
    // Anywhere on the page: a file that misses the zone would otherwise replace the page.
    document.addEventListener("dragover", over, { signal });
    document.addEventListener("dragleave", (event) => {
      if (event.relatedTarget === null) this.zone.classList.remove("over");
    }, { signal });
    document.addEventListener("drop", (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      this.zone.classList.remove("over");
      this.take(event.dataTransfer.files);
    }, { signal });
  }

  /** @param {FileList | null} files */
  take(files) {
    const key = currentKey();
    for (const file of files ?? []) {
      const line = new UploadLine(file);
      this.results.prepend(line.element);
      while (this.results.childElementCount > RESULTS_MAX) this.results.lastElementChild?.remove();
      if (file.name.endsWith(".whl")) this.waiting.push({ file, tags: this.tags.value.trim(), key, line });
      else line.fail(t("wheels.not_a_wheel"));
    }
    void this.work();
  }

  async work() {
    if (this.busy) return;
    this.busy = true;
    busyOne = this;
    const unfollow = connection.follow(() => this.forgetStrangers());
    try {
      for (let next = this.waiting.shift(); next; next = this.waiting.shift()) {
        this.sending = next;
        await this.send(next);
      }
    } finally {
      unfollow();
      this.sending = null;
      this.busy = false;
      if (busyOne === this) busyOne = null;
    }
  }

  /** The key has changed: what another one gave is stopped and forgotten, names and all. */
  forgetStrangers() {
    const taken = this.sending === null ? this.waiting : [this.sending, ...this.waiting];
    if (taken.every((each) => each.key === currentKey())) return;
    this.waiting = [];
    for (const { line } of taken) line.cancelling.abort();
    this.results.replaceChildren();
    if (busyOne === this) busyOne = null; // whoever comes next begins with an empty one
  }

  /** @param {Taken} what */
  async send({ file, tags, key, line }) {
    const form = new FormData();
    // Before the file: the gateway reads a form in its order.
    if (tags !== "") form.append("tags", tags);
    form.append("wheel", file, file.name);
    const { signal } = line.cancelling;
    if (signal.aborted) return;
    try {
      await upload("wheels", form, (share) => line.progress(share), signal, key);
      line.done();
      this.changed();
    } catch (error) {
      if (signal.aborted) line.fail(t("wheels.upload_cancelled"));
      else if (error instanceof Refused) line.refused(error, tags);
      else if (error instanceof Unreachable) line.fail(t("act.unreachable"));
      else throw error;
    }
    if (this.closing.signal.aborted && key === currentKey()) toast(`${file.name}: ${line.words.textContent?.trim() ?? ""}`, line.isBad ? "danger" : "plain");
  }
}

/** What becomes of one file. */
class UploadLine {
  /** @param {File} file */
  constructor(file) {
    this.file = file;
    this.isBad = false;
    this.cancelling = new AbortController();
    this.words = h("span", { class: "small dim" }, t("wheels.waits"));
    this.bar = h("progress", { max: "1", value: "0", "aria-label": file.name });
    this.cancel = iconButton("close", t("wheels.cancel"), () => {
      this.cancelling.abort();
      if (this.bar.isConnected && this.bar.value === 0) this.fail(t("wheels.upload_cancelled"));
    });
    this.body = h("div", { class: "stack" });
    this.element = h("div", { class: "upload-line" },
      h("div", { class: "name-line" }, h("code", { class: "clip" }, file.name), h("span", { class: "small dim" }, bytes(file.size)), this.bar, this.words, this.cancel),
      this.body);
  }

  /** @param {number} share */
  progress(share) {
    this.bar.value = share;
    write(this.words, share >= 1 ? t("wheels.checking") : t("wheels.percent", { n: Math.floor(100 * share) }));
  }

  done() {
    this.end();
    this.element.classList.add("good");
    this.words.replaceChildren(icon("completed"), " ", t("wheels.uploaded_done"));
  }

  /** @param {string} words */
  fail(words) {
    this.end();
    this.isBad = true;
    this.element.classList.add("bad");
    this.words.replaceChildren(icon("failed"), " ", words);
  }

  /**
   * The gateway's words, each problem on its own line, and what to do.
   * @param {Refused} error
   * @param {string} tags
   */
  refused(error, tags) {
    this.fail(error.status === 409 ? t("wheels.not_newer") : error.status === 413 ? t("wheels.too_large") : t("wheels.refused"));
    const problems = error.told.errors ?? [];
    this.body.append(problems.length === 0 ? h("p", { class: "small" }, error.words) : h("ul", { class: "troubles" },
      problems.slice(0, 20).map((each) => h("li", null, String(each.msg).slice(0, 1000)))));
    if (error.status === 409) this.body.append(h("p", { class: "small dim" }, t("wheels.not_newer_how")));
    else if (error.status >= 500) {
      this.body.append(commandBox(`pyoco-client wheel upload ${shellWord(this.file.name)}${tags === "" ? "" : ` --tags ${shellWord(tags)}`}`));
    }
  }

  end() {
    this.bar.remove();
    this.cancel.remove();
  }
}
