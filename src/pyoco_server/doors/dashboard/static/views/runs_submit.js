// A run, submitted by hand: of a flow that the workers know, or of a flow.yaml that is given here.

import { Refused, Unreachable, get, send } from "../lib/api.js";
import { h, put, write } from "../lib/dom.js";
import { t } from "../lib/i18n.js";
import { freshKey } from "../lib/once.js";
import { actButton, button } from "../lib/parts.js";
import { href } from "../lib/router.js";
import { currentKey } from "../lib/session.js";
import { toast } from "../lib/toast.js";
import { ParamsForm } from "./params_form.js";

/**
 * The params as they were typed, if they are an object: written anew by this browser, a long number would have other
 * digits, and 1.0 would be 1.
 * @param {string} text
 * @returns {{ params: string | null } | { trouble: string }}
 */
export function readParams(text) {
  if (text.trim() === "") return { params: null };
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return { trouble: t("runs.submit.not_json", { why: error instanceof Error ? error.message : "" }) };
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) return { trouble: t("runs.submit.not_object") };
  return { params: text.trim() };
}

/**
 * Asks for flow, tag and params, or a flow.yaml, and opens the run. Under one key: pressed again after a lost answer, it
 * is submitted once.
 * @param {{ flow?: string }} given what the list is narrowed down to. Its tag may be a label, which no worker serves
 */
export function submitRun(given) {
  new SubmitDialog(given).open();
}

/** @typedef {"named" | "yaml"} Way */
/** @typedef {import("../lib/wire.js").OfferedFlow} OfferedFlow */
/** The pages of announced flows that are read: more names would not help anybody to choose. */
const PAGES_MAX = 5;
/** A file that is no flow.yaml is not read to its end. The gateway has a limit of its own, and says it. */
const YAML_BYTES_MAX = 8 * 1024 * 1024;

class SubmitDialog {
  /** @param {{ flow?: string }} given */
  constructor(given) {
    this.given = given;
    /** @type {Way} */
    this.way = "named";
    this.key = freshKey();
    this.sent = "";
    this.leaving = new AbortController();
    /** @type {Map<string, OfferedFlow>} */
    this.offered = new Map();
    /** @type {ParamsForm | null} */
    this.form = null;
    this.formOf = "";
    this.names = h("datalist", { id: "submit-flows" });
    this.flow = h("input", { type: "text", list: "submit-flows", required: true, maxlength: "512", autocomplete: "off", value: given.flow });
    this.tag = h("input", { type: "text", list: "runs-tags", maxlength: "128", autocomplete: "off", placeholder: t("runs.submit.tag.default") });
    this.params = h("textarea", { rows: "6", spellcheck: "false", placeholder: '{"name": "you"}', "aria-describedby": "submit-trouble" });
    this.file = h("input", { type: "file", accept: ".yaml,.yml,.txt,application/yaml,text/yaml" });
    this.yaml = h("textarea", { rows: "9", spellcheck: "false", wrap: "off", "aria-describedby": "submit-trouble" });
    /** @type {HTMLElement} the field that was wrong last */
    this.wrong = this.params;
    this.trouble = h("p", { id: "submit-trouble", class: "field-trouble", role: "alert" });
    this.ways = { named: this.wayButton("named"), yaml: this.wayButton("yaml") };
    this.noNames = h("p", { class: "dim small" }, t("runs.submit.no_names"));
    this.doc = h("p", { class: "dim small" });
    this.fields = h("div", { class: "dialog-body", hidden: true });
    this.asJson = h("button", { type: "button", class: "chip", hidden: true, onclick: () => this.editJson() }, t("runs.submit.json"));
    this.json = field(t("runs.submit.params"), this.params);
    this.named = h("div", { class: "dialog-body" }, this.doc, h("div", { class: "chips" }, this.asJson), this.fields, this.json);
    this.uploaded = h("div", { class: "dialog-body", hidden: true }, field(t("runs.submit.file"), this.file),
      field(t("runs.submit.yaml.text"), this.yaml), h("p", { class: "dim small" }, t("runs.submit.yaml.note")));
    this.yes = actButton(t("runs.submit.yes"), () => this.submit(), { kind: "primary" });
    /** @type {HTMLDialogElement} */
    this.dialog = h("dialog", { class: "dialog", "aria-labelledby": "submit-title" },
      h("h2", { id: "submit-title" }, t("runs.submit")),
      h("div", { class: "dialog-body" },
        h("div", { class: "chips", role: "group", "aria-label": t("runs.submit.way") }, this.ways.named, this.ways.yaml),
        field(t("runs.filter.flow"), this.flow), this.names, this.noNames, field(t("runs.submit.tag"), this.tag), this.named, this.uploaded,
        this.trouble),
      h("div", { class: "dialog-actions" }, button(t("no"), () => this.dialog.close()), this.yes));
    this.listen();
    this.choose("named");
  }

  listen() {
    this.params.addEventListener("change", () => this.readParams());
    this.file.addEventListener("change", () => void this.readFile());
    this.flow.addEventListener("input", () => this.showFields());
    this.dialog.addEventListener("close", () => {
      this.leaving.abort();
      this.dialog.remove();
    });
    for (const line of [this.flow, this.tag]) {
      line.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" || event.isComposing) return;
        event.preventDefault();
        this.yes.click();
      });
    }
  }

  open() {
    document.body.append(this.dialog);
    this.dialog.showModal();
    (this.given.flow ? this.params : this.flow).focus();
    void this.learnFlows();
  }

  /** Read what the workers announce. Without an answer, names can be typed and params written as before. */
  async learnFlows() {
    /** @type {string | null} */
    let cursor = null;
    try {
      for (let page = 0; page < PAGES_MAX && (page === 0 || cursor !== null); page += 1) {
        /** @type {{ items: OfferedFlow[], next_cursor: string | null }} */
        const answer = await get("flows", { limit: 200, cursor }, this.leaving.signal);
        for (const each of answer.items) this.offered.set(each.name, each);
        cursor = answer.next_cursor;
      }
    } catch (error) {
      if (!(error instanceof Refused || error instanceof Unreachable || this.leaving.signal.aborted)) throw error;
    }
    this.suggest();
    this.showFields();
  }

  /** Suggest the announced flows, and those of the runs that are listed. */
  suggest() {
    const listed = [...document.querySelectorAll("#runs-flows option")].map((each) => /** @type {HTMLOptionElement} */ (each).value);
    put(this.names, [...new Set([...this.offered.keys(), ...listed])].map((value) => h("option", { value })));
    this.noNames.hidden = this.way !== "named" || this.names.childElementCount > 0;
  }

  /** Show the fields of the flow that is named, if its params are known. */
  showFields() {
    const flow = this.offered.get(this.flow.value.trim());
    if (this.formOf === (flow?.name ?? "")) return;
    this.formOf = flow?.name ?? "";
    write(this.doc, flow?.doc ?? "");
    this.tag.placeholder = flow?.tag ?? t("runs.submit.tag.default");
    const isKnown = flow?.params.properties !== undefined && this.params.value.trim() === "";
    this.form = isKnown ? new ParamsForm(flow.params) : null;
    put(this.fields, this.form?.element);
    const hadFocus = document.activeElement === this.params;
    this.asJson.hidden = this.fields.hidden = this.form === null;
    this.json.hidden = this.form !== null;
    if (hadFocus) this.form?.params[0]?.input.focus();
  }

  /** What the fields hold goes into the editor, where everything can be written. */
  editJson() {
    const read = this.form?.read();
    if (read !== undefined && "params" in read) this.params.value = read.params ?? "";
    this.form = null;
    this.asJson.hidden = this.fields.hidden = true;
    this.json.hidden = false;
    write(this.trouble, "");
    this.params.focus();
  }

  /** @param {Way} way */
  wayButton(way) {
    return h("button", { type: "button", class: "chip", onclick: () => this.choose(way) }, t(`runs.submit.${way}`));
  }

  /** @param {Way} way */
  choose(way) {
    this.way = way;
    for (const [name, element] of Object.entries(this.ways)) element.setAttribute("aria-pressed", String(name === way));
    this.named.hidden = way !== "named";
    this.uploaded.hidden = way !== "yaml";
    this.suggest();
    write(this.trouble, "");
  }

  /** The params, from the fields or the editor. null: something is wrong, and that was told. */
  readParams() {
    /** @type {import("./params_form.js").Read} */
    const read = this.form?.read() ?? readParams(this.params.value);
    const wrong = "trouble" in read;
    this.wrong = (wrong ? read.field : undefined) ?? this.params;
    this.params.setAttribute("aria-invalid", String(wrong));
    write(this.trouble, wrong ? read.trouble : "");
    return wrong ? null : read;
  }

  /** Into the field, where it is seen and can be changed. */
  async readFile() {
    const [file] = this.file.files ?? [];
    if (file === undefined) return;
    if (file.size > YAML_BYTES_MAX) return write(this.trouble, t("runs.submit.yaml.large"));
    try {
      this.yaml.value = await file.text();
      write(this.trouble, "");
    } catch {
      write(this.trouble, t("runs.submit.yaml.unreadable")); // it was moved or changed since it was chosen
    }
  }

  /**
   * What is to be sent, and the same as a text to know it again. null: something is missing, and that was told.
   * @returns {{ path: string, body: string | FormData, text: string } | null}
   */
  read() {
    const isYaml = this.way === "yaml";
    const read = isYaml ? { params: null } : this.readParams();
    if (read === null) return this.refuse(this.wrong);
    const flow = this.flow.value.trim();
    const offered = isYaml ? undefined : this.offered.get(flow);
    const tag = this.tag.value.trim() || (offered?.tag ?? "");
    if (flow === "") return this.refuse(this.flow, t("runs.submit.no_flow"));
    const named = JSON.stringify({ flow_name: flow, tag: tag || undefined, tags: offered?.tags.length ? offered.tags : undefined });
    if (!isYaml) {
      const text = read.params === null ? named : `${named.slice(0, -1)},"params":${read.params}}`;
      return { path: "runs", body: text, text };
    }
    if (this.yaml.value.trim() === "") return this.refuse(this.yaml, t("runs.submit.no_yaml"));
    const body = new FormData();
    body.set("workflow", new File([this.yaml.value], "flow.yaml", { type: "application/yaml" }));
    body.set("flow_name", flow);
    if (tag !== "") body.set("tag", tag);
    return { path: "runs/yaml", body, text: `${named}\n${this.yaml.value}` };
  }

  /**
   * @param {HTMLElement} field
   * @param {string} [trouble]
   */
  refuse(field, trouble) {
    if (trouble !== undefined) write(this.trouble, trouble);
    field.focus();
    return null;
  }

  async submit() {
    const what = this.read();
    if (what === null) return;
    if (this.sent !== "" && this.sent !== what.text) this.key = freshKey(); // another submission is another run
    this.sent = what.text;
    const apiKey = currentKey();
    try {
      const done = await send("POST", what.path, what.body, undefined, this.key);
      if (apiKey !== currentKey()) return; // it is not for whoever sits here now
      const there = href("runs", [String(done.run_id)]);
      const isHere = this.dialog.open;
      this.dialog.close();
      toast(t(done.warning === undefined ? "runs.submit.done" : "runs.submit.unannounced"), done.warning === undefined ? "plain" : "warning", isHere ? undefined : there);
      if (isHere) location.hash = there;
    } catch (error) {
      if (error instanceof Refused) write(this.trouble, error.words);
      else if (error instanceof Unreachable) write(this.trouble, t("runs.submit.again"));
      else throw error;
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
