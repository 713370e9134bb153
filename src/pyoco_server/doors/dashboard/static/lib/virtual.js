// Thousands of rows of one height, of which only those on the screen are in the page. Elements are used again.

/** Rows kept ready beyond the screen, for scrolling that is faster than drawing: most of them where it goes to. */
const AHEAD = 8;
const BEHIND = 3;

/**
 * Which rows are on the screen.
 * @param {{ top: number, screen: number, rowHeight: number, count: number }} what
 *   top: how far the list's beginning is above the screen's, in pixels; negative when it is below
 * @returns {{ first: number, last: number }} last is the one behind the last one
 */
export function rowsOnScreen({ top, screen, rowHeight, count }) {
  if (rowHeight <= 0 || count === 0) return { first: 0, last: 0 };
  const first = Math.floor(top / rowHeight);
  const last = Math.ceil((top + screen) / rowHeight);
  const within = (/** @type {number} */ index) => Math.min(count, Math.max(0, index));
  return { first: within(first), last: within(last) };
}

/**
 * @template {{ run_id: string }} T
 * @template {{ element: HTMLElement, top?: number }} R  top: where it stands, in pixels
 */
export class VirtualRows {
  /**
   * @param {HTMLElement} body made as high as all rows
   * @param {() => R} make
   * @param {(row: R, item: T, index: number) => void} fill called for each row on the screen at each drawing
   */
  constructor(body, make, fill) {
    this.body = body;
    this.make = make;
    this.fill = fill;
    /** @type {Map<string, R>} the rows in the page, by what they show; in their order */
    this.shown = new Map();
    /** @type {R[]} not in the page */
    this.spare = [];
    this.rowHeight = 0;
    this.height = -1;
    this.first = 0;
    this.isUpward = false;
  }

  /**
   * Draw. A row that shows the same run as before keeps its element, so focus and pressed buttons live on. Others are
   * filled where they are in the page: taking an element out and putting it back costs more than all the rest. So
   * whoever draws calls `order` when nothing moves. O(rows on the screen).
   * @param {T[]} items
   * @param {{ first: number, last: number }} onScreen
   * @param {number} pinned index of a row that stays in the page wherever it is, since it has the focus; -1: none
   */
  draw(items, onScreen, pinned) {
    const indexes = this.indexes(items.length, onScreen, pinned);
    this.stretch(items.length * this.rowHeight);
    const free = this.release(new Set(indexes.map((index) => /** @type {T} */ (items[index]).run_id)));
    /** @type {Map<string, R>} */
    const drawn = new Map();
    for (const index of indexes) {
      const item = /** @type {T} */ (items[index]);
      const row = this.shown.get(item.run_id) ?? free.pop() ?? this.spare.pop() ?? this.make();
      if (row.element.parentNode !== this.body) this.body.append(row.element);
      this.fill(row, item, index);
      this.move(row, index * this.rowHeight);
      drawn.set(item.run_id, row);
    }
    this.shown = drawn;
    for (const row of free) row.element.remove();
    this.spare.push(...free.slice(0, AHEAD));
    this.spare.length = Math.min(this.spare.length, AHEAD);
  }

  /** Put the elements into the order of the rows, for those who hear the page. The one with the focus is not touched. */
  order() {
    const elements = [...this.shown.values()].map((row) => row.element);
    const anchor = Math.max(0, elements.findIndex((element) => element.contains(document.activeElement)));
    for (let at = anchor - 1; at >= 0; at -= 1) {
      const [element, next] = [/** @type {HTMLElement} */ (elements[at]), /** @type {HTMLElement} */ (elements[at + 1])];
      if (element.nextElementSibling !== next) next.before(element);
    }
    for (let at = anchor + 1; at < elements.length; at += 1) {
      const [element, before] = [/** @type {HTMLElement} */ (elements[at]), /** @type {HTMLElement} */ (elements[at - 1])];
      if (element.previousElementSibling !== before) before.after(element);
    }
  }

  /**
   * Which rows have to be in the page, in their order.
   * @param {number} count
   * @param {{ first: number, last: number }} onScreen
   * @param {number} pinned
   */
  indexes(count, onScreen, pinned) {
    if (onScreen.first !== this.first) this.isUpward = onScreen.first < this.first;
    this.first = onScreen.first;
    const first = Math.max(0, onScreen.first - (this.isUpward ? AHEAD : BEHIND));
    const last = Math.min(count, onScreen.last + (this.isUpward ? BEHIND : AHEAD));
    const indexes = Array.from({ length: Math.max(0, last - first) }, (_, offset) => first + offset);
    if (pinned >= 0 && pinned < first) indexes.unshift(pinned);
    if (pinned >= last && pinned < count) indexes.push(pinned);
    return indexes;
  }

  /**
   * @param {R} row
   * @param {number} top
   */
  move(row, top) {
    if (row.top === top) return;
    row.top = top;
    row.element.style.transform = `translateY(${top}px)`;
  }

  /** @param {number} height */
  stretch(height) {
    if (height === this.height) return;
    this.height = height;
    this.body.style.height = `${height}px`;
  }

  /**
   * @param {Set<string>} wanted
   * @returns {R[]} the others
   */
  release(wanted) {
    const free = [];
    for (const [id, row] of this.shown) {
      if (wanted.has(id)) continue;
      // The focus does not pass from one run to another unasked.
      if (row.element.contains(document.activeElement)) row.element.remove();
      free.push(row);
    }
    return free;
  }
}
