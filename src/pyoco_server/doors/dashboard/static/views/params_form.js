// Fields for the params of a flow, made from the schema that its workers announce.

import { h } from "../lib/dom.js";
import { t } from "../lib/i18n.js";

/** @typedef {import("../lib/wire.js").Schema} Schema */
/** @typedef {HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement} Input */
/**
 * @typedef {object} Param
 * @property {string} name
 * @property {Schema} schema      without the null that it may allow
 * @property {boolean} nullable
 * @property {boolean} required
 * @property {Input} input
 */
/** @typedef {{ params: string | null } | { trouble: string, field?: HTMLElement }} Read */

const WHOLE = /^-?(0|[1-9]\d*)$/;

/** A form of one field for each param. An empty field is not sent, so the flow's own default counts. */
export class ParamsForm {
  /** @param {Schema} schema an object with properties */
  constructor(schema) {
    this.params = Object.entries(schema.properties ?? {}).map(([name, each]) => param(name, each, schema.required?.includes(name) ?? false));
    this.element = h("div", { class: "dialog-body" }, this.params.map((each) => h("label", { class: "field" },
      h("span", null, each.required ? `${each.name} *` : each.name, " ", h("span", { class: "dim" }, kindOf(each.schema))), each.input)));
  }

  /**
   * The params as JSON text: numbers keep the digits that were typed.
   * @returns {Read}
   */
  read() {
    const members = [];
    for (const each of this.params) {
      const read = valueOf(each);
      each.input.setAttribute("aria-invalid", String("trouble" in read));
      if ("trouble" in read) return { trouble: `${each.name}: ${read.trouble}`, field: each.input };
      if (read.json !== null) members.push(`${JSON.stringify(each.name)}:${read.json}`);
    }
    return { params: members.length === 0 ? null : `{${members.join(",")}}` };
  }
}

/**
 * @param {string} name
 * @param {Schema} given
 * @param {boolean} required
 * @returns {Param}
 */
function param(name, given, required) {
  const options = given.anyOf?.filter((each) => each.type !== "null") ?? [];
  const nullable = options.length > 0 && options.length < (given.anyOf?.length ?? 0);
  const schema = nullable && options.length === 1 ? { ...given, anyOf: undefined, ...options[0] } : given;
  return { name, schema, nullable, required, input: inputFor(schema, required) };
}

/**
 * @param {Schema} schema
 * @param {boolean} required
 * @returns {Input}
 */
function inputFor(schema, required) {
  const standard = "default" in schema ? written(schema.default, schema) : "";
  const shared = { required, autocomplete: "off", spellcheck: "false", dir: "ltr", "aria-describedby": "submit-trouble" };
  const choices = schema.enum ?? (schema.type === "boolean" ? [true, false] : null);
  if (choices !== null) {
    const none = standard === "" ? "" : t("runs.submit.default", { value: standard });
    return h("select", shared, h("option", { value: "" }, none), choices.map((each) => h("option", { value: JSON.stringify(each) }, written(each, schema))));
  }
  if (isLine(schema)) return h("input", { ...shared, type: "text", inputmode: isNumber(schema) ? "decimal" : null, placeholder: standard });
  return h("textarea", { ...shared, rows: "2", placeholder: standard || "JSON" });
}

/**
 * What is sent for a param, as JSON; null: nothing.
 * @param {Param} param
 * @returns {{ json: string | null } | { trouble: string }}
 */
function valueOf({ schema, nullable, required, input }) {
  const text = input.value;
  if (text.trim() === "") {
    if (!required) return { json: null };
    return nullable ? { json: "null" } : { trouble: t("runs.submit.required") };
  }
  if (input instanceof HTMLSelectElement) return { json: text };
  if (schema.type === "string") return { json: JSON.stringify(text) };
  const typed = text.trim();
  if (schema.type === "integer") return WHOLE.test(typed) ? { json: typed } : { trouble: t("runs.submit.not_whole") };
  try {
    const value = JSON.parse(typed);
    if (schema.type === "number" && typeof value !== "number") return { trouble: t("runs.submit.not_number") };
    return { json: typed };
  } catch (error) {
    return { trouble: t("runs.submit.not_json", { why: error instanceof Error ? error.message : "" }) };
  }
}

/** @param {Schema} schema */
function isNumber(schema) {
  return schema.type === "integer" || schema.type === "number";
}

/** @param {Schema} schema */
function isLine(schema) {
  return schema.type === "string" || isNumber(schema);
}

/**
 * @param {unknown} value
 * @param {Schema} schema
 */
function written(value, schema) {
  return typeof value === "string" && (schema.type === "string" || schema.type === undefined) ? value : JSON.stringify(value);
}

/** @param {Schema} schema */
function kindOf(schema) {
  return schema.enum === undefined && typeof schema.type === "string" ? schema.format ?? schema.type : "";
}
