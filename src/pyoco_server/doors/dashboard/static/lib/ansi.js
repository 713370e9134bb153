// What a program wrote for a terminal, as pieces of text with a look. Nothing in it is executed: of all sequences only
// those that set colours and weight (SGR) are read, and every other control character is shown as what it is. No DOM.

/**
 * @typedef {object} Look
 * @property {string[]} classes
 * @property {string | null} ink      a colour that is none of the sixteen, as CSS
 * @property {string | null} ground
 */
/** @typedef {{ text: string, look: Look | null, isControl: boolean }} Piece */
/** @typedef {number | string | null} Colour one of the sixteen, or a colour as CSS */

const SGR = /\x1b\[([0-9;:]{0,40})m/g;
/** Control characters except TAB, line separators, and characters that turn the direction of the text around them. */
const CONTROL = /[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g;
/** A line with more changes of its look than this is shown without them from there on. */
const PIECES_MAX = 1000;

/** @type {Record<number, string>} */
const FLAGS = { 1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "strike" };
/** @type {Record<number, string[]>} */
const FLAGS_OFF = { 22: ["bold", "dim"], 23: ["italic"], 24: ["underline"], 27: ["inverse"], 29: ["strike"] };

/**
 * A text without colours, with control characters shown: `\x07`, `\u202e`.
 * @param {string} text
 */
export function plain(text) {
  return text.replace(SGR, "").replace(CONTROL, shown);
}

/** @param {string} character */
function shown(character) {
  const code = character.charCodeAt(0);
  return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
}

/**
 * O(characters). Each text begins without a look: what one line has set does not reach the next.
 * @param {string} text
 * @returns {Piece[]}
 */
export function piecesOf(text) {
  /** @type {Piece[]} */
  const pieces = [];
  const state = new State();
  let at = 0;
  for (const found of text.matchAll(SGR)) {
    if (pieces.length >= PIECES_MAX) break;
    add(pieces, text.slice(at, found.index), state.look());
    state.apply(/** @type {string} */ (found[1]));
    at = found.index + found[0].length;
  }
  add(pieces, pieces.length >= PIECES_MAX ? text.slice(at).replace(SGR, "") : text.slice(at), state.look());
  return pieces;
}

/**
 * @param {Piece[]} pieces
 * @param {string} text
 * @param {Look | null} look
 */
function add(pieces, text, look) {
  if (pieces.length >= PIECES_MAX) {
    pieces.push({ text: text.replace(CONTROL, shown), look, isControl: false });
    return;
  }
  let at = 0;
  for (const found of text.matchAll(CONTROL)) {
    if (found.index > at) pieces.push({ text: text.slice(at, found.index), look, isControl: false });
    const last = pieces.at(-1);
    if (last?.isControl && last.look === look && found.index === at) last.text += shown(found[0]);
    else pieces.push({ text: shown(found[0]), look, isControl: true });
    at = found.index + 1;
  }
  if (at < text.length) pieces.push({ text: text.slice(at), look, isControl: false });
}

class State {
  constructor() {
    this.reset();
  }

  reset() {
    /** @type {Set<string>} */
    this.flags = new Set();
    /** @type {Colour} */
    this.ink = null;
    /** @type {Colour} */
    this.ground = null;
    /** @type {Look | null | undefined} made once for each change */
    this.made = null;
  }

  /** @param {string} sequence */
  apply(sequence) {
    this.made = undefined;
    // `38:2::r:g:b` has an empty place for a colour space, which `38;2;r;g;b` has not.
    const codes = sequence.replace(/([345]8:2):\d*:(\d*:\d*:\d*)/g, "$1:$2").split(/[;:]/).map(Number);
    for (let at = 0; at < codes.length; at += 1) at += this.one(codes, at);
    if (this.flags?.size === 0 && this.ink === null && this.ground === null) this.made = null;
  }

  /**
   * @param {number[]} codes
   * @param {number} at
   * @returns {number} how many more of them belonged to it
   */
  one(codes, at) {
    const code = /** @type {number} */ (codes[at]);
    const flag = FLAGS[code];
    if (code === 0) this.reset();
    else if (flag !== undefined) this.flags?.add(flag);
    else if (FLAGS_OFF[code] !== undefined) for (const each of FLAGS_OFF[code] ?? []) this.flags?.delete(each);
    else if (code >= 30 && code <= 37) this.ink = code - 30;
    else if (code >= 90 && code <= 97) this.ink = code - 82;
    else if (code >= 40 && code <= 47) this.ground = code - 40;
    else if (code >= 100 && code <= 107) this.ground = code - 92;
    else if (code === 39) this.ink = null;
    else if (code === 49) this.ground = null;
    else if (code === 38 || code === 48 || code === 58) {
      const [colour, taken] = extended(codes, at + 1);
      if (code === 38) this.ink = colour;
      else if (code === 48) this.ground = colour; // and 58 is the colour of an underline
      return taken;
    }
    return 0;
  }

  /** @returns {Look | null} */
  look() {
    if (this.made !== undefined) return this.made;
    const flags = [...(this.flags ?? [])].map((flag) => `ansi-${flag}`);
    const ink = typeof this.ink === "number" ? [`ansi-ink-${this.ink}`] : [];
    const ground = typeof this.ground === "number" ? [`ansi-ground-${this.ground}`] : [];
    this.made = {
      classes: [...flags, ...ink, ...ground],
      ink: typeof this.ink === "string" ? this.ink : null, ground: typeof this.ground === "string" ? this.ground : null,
    };
    return this.made;
  }
}

/**
 * `5;n` and `2;r;g;b`.
 * @param {number[]} codes
 * @param {number} at
 * @returns {[Colour, number]} the colour, and how many codes it took
 */
function extended(codes, at) {
  if (codes[at] === 5) return [fromTable(codes[at + 1] ?? 0), 2];
  if (codes[at] === 2) return [css(codes[at + 1] ?? 0, codes[at + 2] ?? 0, codes[at + 3] ?? 0), 4];
  return [null, 1];
}

/**
 * The table of 256 colours: the sixteen, a cube of 6 by 6 by 6, and greys.
 * @param {number} number
 * @returns {Colour}
 */
function fromTable(number) {
  if (number < 16) return number;
  if (number > 255) return null;
  if (number >= 232) return css(...grey(8 + 10 * (number - 232)));
  const cube = number - 16;
  const level = (/** @type {number} */ step) => (step === 0 ? 0 : 55 + 40 * step);
  return css(level(Math.floor(cube / 36)), level(Math.floor(cube / 6) % 6), level(cube % 6));
}

/**
 * @param {number} level
 * @returns {[number, number, number]}
 */
function grey(level) {
  return [level, level, level];
}

/**
 * @param {number} red
 * @param {number} green
 * @param {number} blue
 */
function css(red, green, blue) {
  return `rgb(${[red, green, blue].map((each) => Math.min(255, each)).join(" ")})`;
}
