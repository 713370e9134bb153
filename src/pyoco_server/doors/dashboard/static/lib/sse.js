// Server-sent events, from text to events. No I/O: whoever has the bytes feeds them in, cut anywhere.

/** @typedef {{ event: string, id: string, data: string }} SentEvent */

/** A frame beyond this is not one of ours. */
const CHARACTERS_MAX = 16 * 1024 * 1024;

export class EventParser {
  constructor() {
    this.rest = "";
    this.lastId = "";
  }

  /**
   * @param {string} text
   * @returns {SentEvent[]}
   */
  feed(text) {
    this.rest += text;
    if (this.rest.length > CHARACTERS_MAX) throw new RangeError("an event is too large");
    const frames = this.rest.split(/\r?\n\r?\n/);
    this.rest = /** @type {string} */ (frames.pop());
    return frames.map((frame) => this.read(frame)).filter((event) => event !== null);
  }

  /**
   * @param {string} frame
   * @returns {SentEvent | null} null: a comment
   */
  read(frame) {
    let event = "message";
    /** @type {string[]} */
    const data = [];
    for (const line of frame.split(/\r?\n/)) {
      const [, name = "", value = ""] = /^([^:]*):? ?(.*)$/s.exec(line) ?? [];
      if (name === "event") event = value;
      else if (name === "id") this.lastId = value;
      else if (name === "data") data.push(value);
    }
    return data.length === 0 ? null : { event, id: this.lastId, data: data.join("\n") };
  }
}
