// Elements, made of text and nothing else: a value of a user can become a text node or an attribute, never markup.

/** @typedef {Node | string | number | null | undefined | false} Leaf */
/** @typedef {Leaf | Leaf[]} Child */
/**
 * What an element is made with. `on…` listens; `style` sets properties one by one, which the page's policy allows,
 * while a `style` attribute is not; `true` and `false` set and leave out an attribute; `null` leaves it out.
 * @typedef {Record<string, unknown> & { style?: Record<string, string | number> }} Props
 */

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Props | null} [props]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  dress(element, props);
  fill(element, children);
  return element;
}

/**
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} tag
 * @param {Props | null} [props]
 * @param {...Child} children
 * @returns {SVGElementTagNameMap[K]}
 */
export function svg(tag, props, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  dress(element, props);
  fill(element, children);
  return element;
}

/**
 * Put these children in place of whatever is there.
 * @param {Element} element
 * @param {...Child} children
 */
export function put(element, ...children) {
  element.replaceChildren();
  fill(element, children);
}

/**
 * Write a text, and touch the page only if it differs: a screen reader and a selection are not disturbed.
 * @param {Node} node
 * @param {string} text
 */
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * @param {HTMLElement | SVGElement} element
 * @param {Props | null} [props]
 */
function dress(element, props) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on") && typeof value === "function") {
      element.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    } else if (name === "style") {
      for (const [property, set] of Object.entries(/** @type {Record<string, string | number>} */ (value))) {
        element.style.setProperty(property, String(set));
      }
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
}

/**
 * @param {Element} element
 * @param {Child[]} children
 */
function fill(element, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}
