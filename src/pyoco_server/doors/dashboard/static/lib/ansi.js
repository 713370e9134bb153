// Parses terminal output into styled pieces of text. Only SGR sequences (colours, weight) are interpreted; every other
// control character is replaced by its visible form. No DOM.

/**
 * @typedef {object} Look
 * @property {string[]} classes
 * @property {string | null} ink      a CSS colour, if it is not one of the sixteen
 * @property {string | null} ground
 */
/** @typedef {{ text: string, look: Look | null, isControl: boolean }} Piece */
/** @typedef {number | string | null} Colour the number of one of the sixteen, or a CSS colour */

const SGR = /\x1b\[([0-9;:]{0,40})m/g;
/** Control characters except TAB, line separators, and characters that override the text direction. */
const CONTROL = /[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g;
/** The rest of a line with more styled pieces than this is shown unstyled. */
const PIECES_MAX = 1000;

/** @type {Record<number, string>} */
const FLAGS = { 1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "strike" };
/** @type {Record<number, string[]>} */
const FLAGS_OFF = { 22: ["bold", "dim"], 23: ["italic"], 24: ["underline"], 27: ["inverse"], 29: ["strike"] };

/**
 * Strip colours and escape control characters: `\x07`, `\u202e`.
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
 * O(characters). Each text starts unstyled: styles do not carry over from one line to the next.
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
    /** @type {Look | null | undefined} cached until the next change */
    this.made = null;
  }

  /** @param {string} sequence */
  apply(sequence) {
    this.made = undefined;
    // `38:2::r:g:b` has a colour space field, which may be empty; `38;2;r;g;b` does not.
    const codes = sequence.replace(/([345]8:2):\d*:(\d*:\d*:\d*)/g, "$1:$2").split(/[;:]/).map(Number);
    for (let at = 0; at < codes.length; at += 1) at += this.one(codes, at);
    if (this.flags?.size === 0 && this.ink === null && this.ground === null) this.made = null;
  }

  /**
   * @param {number[]} codes
   * @param {number} at
   * @returns {number} the number of further codes consumed
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
      else if (code === 48) this.ground = colour; // 58, the underline colour, is ignored
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
 * Parse an extended colour: `5;n` or `2;r;g;b`.
 * @param {number[]} codes
 * @param {number} at
 * @returns {[Colour, number]} the colour and the number of codes consumed
 */
function extended(codes, at) {
  if (codes[at] === 5) return [fromTable(codes[at + 1] ?? 0), 2];
  if (codes[at] === 2) return [css(codes[at + 1] ?? 0, codes[at + 2] ?? 0, codes[at + 3] ?? 0), 4];
  return [null, 1];
}

/**
 * The 256-colour palette: the sixteen, a 6x6x6 cube, and a grey ramp.
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
