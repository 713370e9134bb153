// Run a program: its name, its arguments one in a line, its files. Under an id of its own, so that it is one job
// however often somebody presses.

import { Refused, Unreachable, upload } from "../lib/api.js";
import { h, write } from "../lib/dom.js";
import { bytes, count } from "../lib/format.js";
import { t } from "../lib/i18n.js";
import { actButton, button } from "../lib/parts.js";
import { freshJobId, readArguments } from "../lib/programs.js";
import { href } from "../lib/router.js";
import { currentKey } from "../lib/session.js";
import { toast } from "../lib/toast.js";

/** @typedef {{ programs: string[], clients: string[], group: string, groups: string[] }} Known  what can be suggested */

const NAME = /^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$/;

/** @param {Known} known */
export function runProgram(known) {
  new ProgramDialog(known).open();
}

class ProgramDialog {
  /** @param {Known} known */
  constructor(known) {
    this.job = freshJobId();
    this.sent = "";
    this.sending = new AbortController();
    this.name = h("input", {
      type: "text", list: "program-names", required: true, maxlength: "64", autocomplete: "off", spellcheck: "false", "aria-describedby": "program-trouble",
    });
    this.args = h("textarea", { rows: "5", spellcheck: "false", wrap: "off", dir: "ltr", "aria-describedby": "program-args-note" });
    this.files = h("input", { type: "file", multiple: true });
    this.chosen = h("p", { class: "dim small" });
    this.client = h("input", { type: "text", list: "program-clients", maxlength: "64", autocomplete: "off", spellcheck: "false", placeholder: t("programs.form.default") });
    this.timeout = h("input", { type: "text", inputmode: "decimal", maxlength: "8", autocomplete: "off", placeholder: t("programs.form.default") });
    this.groups = h("select", null, known.groups.map((each) => h("option", { value: each, selected: each === known.group }, each)));
    this.progress = h("progress", { max: "1", value: "0", "aria-label": t("programs.form.sending"), hidden: true });
    this.trouble = h("p", { id: "program-trouble", class: "field-trouble", role: "alert" });
    this.yes = actButton(t("programs.run"), () => this.submit(), { kind: "primary" });
    /** @type {HTMLDialogElement} */
    this.dialog = h("dialog", { class: "dialog program-form", "aria-labelledby": "program-title" },
      h("h2", { id: "program-title" }, t("programs.run")),
      h("div", { class: "dialog-body" },
        field(t("programs.program"), this.name), h("datalist", { id: "program-names" }, known.programs.map((value) => h("option", { value }))),
        field(t("programs.form.args"), this.args), h("p", { id: "program-args-note", class: "dim small" }, t("programs.form.args.note")),
        field(t("programs.form.files"), this.files), this.chosen,
        h("details", null, h("summary", null, t("programs.form.more")), h("div", { class: "dialog-body" },
          field(t("programs.form.client"), this.client), h("datalist", { id: "program-clients" }, known.clients.map((value) => h("option", { value }))),
          known.groups.length > 1 ? field(t("programs.groups"), this.groups) : null,
          field(t("programs.form.timeout"), this.timeout))),
        this.progress, this.trouble),
      h("div", { class: "dialog-actions" }, button(t("no"), () => this.dialog.close()), this.yes));
    this.hasGroups = known.groups.length > 1;
    this.listen();
  }

  listen() {
    this.files.addEventListener("change", () => this.tellFiles());
    this.dialog.addEventListener("close", () => {
      this.sending.abort();
      this.dialog.remove();
    });
    for (const line of [this.name, this.client, this.timeout]) {
      line.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" || event.isComposing) return;
        event.preventDefault();
        this.yes.click();
      });
    }
    this.args.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.isComposing || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      this.yes.click();
    });
  }

  open() {
    document.body.append(this.dialog);
    this.dialog.showModal();
    this.name.focus();
  }

  tellFiles() {
    const files = [...(this.files.files ?? [])];
    const size = files.reduce((sum, each) => sum + each.size, 0);
    write(this.chosen, files.length === 0 ? "" : t("programs.form.chosen", { n: count(files.length), size: bytes(size) }));
  }

  /**
   * The form, and the same as a text to know it again. null: something is missing, and that was told.
   * @returns {{ form: FormData, text: string } | null}
   */
  read() {
    const name = this.name.value.trim();
    if (!NAME.test(name)) {
      write(this.trouble, t("programs.form.bad_name"));
      this.name.focus();
      return null;
    }
    const fields = [["exec_name", name], ...readArguments(this.args.value).map((each) => ["arg", each])];
    for (const [member, value] of [["client_id", this.client.value], ["timeout_sec", this.timeout.value]]) {
      if (value?.trim()) fields.push([String(member), value.trim()]);
    }
    if (this.hasGroups) fields.push(["group", this.groups.value]);
    const files = [...(this.files.files ?? [])];
    const text = JSON.stringify([fields, files.map((each) => [each.name, each.size, each.lastModified])]);
    if (this.sent !== "" && this.sent !== text) this.job = freshJobId(); // another content is another job
    const form = new FormData();
    for (const [member, value] of [["job_id", this.job], ...fields]) form.append(String(member), String(value));
    for (const each of files) form.append("file", each, each.name);
    return { form, text };
  }

  async submit() {
    const what = this.read();
    if (what === null) return;
    this.sent = what.text;
    write(this.trouble, "");
    const apiKey = currentKey();
    this.progress.hidden = false;
    try {
      const done = await upload("jobs", what.form, (share) => {
        this.progress.value = share;
      }, this.sending.signal);
      if (apiKey !== currentKey()) return; // it is not for whoever sits here now
      const there = href("runs", [String(done.run_id)]);
      this.dialog.close();
      toast(t("runs.submit.done"));
      location.hash = there;
    } catch (error) {
      if (this.sending.signal.aborted) {
        // Closed meanwhile. What was not sent whole is no job; of the rest nobody knows.
        if (this.progress.value >= 1 && apiKey === currentKey()) toast(t("act.unreachable"), "warning", href("runs", [], { job_id: this.job }));
      } else if (error instanceof Refused) write(this.trouble, error.words);
      else if (error instanceof Unreachable) write(this.trouble, t("programs.form.again"));
      else throw error;
    } finally {
      this.progress.hidden = true;
    }
  }
}

/**
 * @param {string} label
 * @param {HTMLElement} input
 */
function field(label, input) {
  return h("label", { class: "field" }, h("span", null, label), input);
}
