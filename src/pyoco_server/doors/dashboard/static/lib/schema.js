// JSON schemas of the OpenAPI document, as text that people read, and as an example to begin with.

/**
 * @typedef {{
 *   $ref?: string, type?: string | string[], description?: string, enum?: unknown[], const?: unknown, default?: unknown,
 *   format?: string, items?: Schema, properties?: Record<string, Schema>, required?: string[], minimum?: number,
 *   additionalProperties?: boolean | Schema, anyOf?: Schema[], oneOf?: Schema[], allOf?: Schema[],
 * }} Schema
 */
/** @typedef {Record<string, Schema>} Schemas  by name */

const DEPTH_MAX = 8;

/** @param {string} ref */
export function nameOf(ref) {
  return ref.slice(ref.lastIndexOf("/") + 1);
}

/**
 * The type in one line or several. Schemas with a name are told by it.
 * @param {Schema | undefined} schema
 * @param {string} [indent]
 * @returns {string}
 */
export function shape(schema, indent = "") {
  if (schema === undefined) return "any";
  if (schema.$ref !== undefined) return nameOf(schema.$ref);
  if (schema.enum !== undefined) return schema.enum.map((each) => JSON.stringify(each)).join(" | ");
  if ("const" in schema) return JSON.stringify(schema.const);
  const some = schema.anyOf ?? schema.oneOf;
  if (some !== undefined) return some.map((each) => shape(each, indent)).join(" | ");
  if (schema.allOf !== undefined) return schema.allOf.map((each) => shape(each, indent)).join(" & ");
  const types = schema.type === undefined ? [] : [schema.type].flat();
  const words = types.map((type) => {
    if (type === "array") return `[${shape(schema.items, indent)}, …]`;
    if (type === "object") return members(schema, indent);
    return schema.format === undefined || type === "null" ? type : `${type} (${schema.format})`;
  });
  return words.join(" | ") || "any";
}

/**
 * @param {Schema} schema
 * @param {string} indent
 */
function members(schema, indent) {
  const more = schema.additionalProperties;
  const deeper = `${indent}  `;
  if (schema.properties === undefined || indent.length > 2 * DEPTH_MAX) {
    return typeof more === "object" ? `{ …: ${shape(more, indent)} }` : "object";
  }
  const required = new Set(schema.required);
  const lines = Object.entries(schema.properties).flatMap(([name, each]) => [
    ...(each.description === undefined ? [] : [`${deeper}// ${each.description}`]),
    `${deeper}${name}${required.has(name) ? "" : "?"}: ${shape(each, deeper)}`,
  ]);
  return ["{", ...lines, `${indent}}`].join("\n");
}

/**
 * A value to begin with: what is required, and nothing else.
 * @param {Schema | undefined} schema
 * @param {Schemas} known
 * @param {number} [depth]
 * @returns {unknown}
 */
export function example(schema, known, depth = 0) {
  if (schema === undefined || depth > DEPTH_MAX) return null;
  if (schema.$ref !== undefined) return example(known[nameOf(schema.$ref)], known, depth + 1);
  if (schema.default !== undefined) return schema.default;
  if (schema.enum !== undefined) return schema.enum[0];
  if ("const" in schema) return schema.const;
  const first = (schema.anyOf ?? schema.oneOf)?.[0];
  if (first !== undefined) return example(first, known, depth + 1);
  if (schema.allOf !== undefined) {
    return Object.assign({}, ...schema.allOf.map((each) => example(each, known, depth + 1)));
  }
  switch ([schema.type].flat()[0]) {
    case "object": {
      const required = (schema.required ?? []).map((name) => [name, example(schema.properties?.[name], known, depth + 1)]);
      return Object.fromEntries(required);
    }
    case "array": return [];
    case "string": return "";
    case "integer": case "number": return schema.minimum ?? 0;
    case "boolean": return false;
    default: return null;
  }
}
