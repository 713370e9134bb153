// Thousands of rows of one height, of which only those on the screen are in the page. Elements are used again.

/** Rows kept ready above and below the screen, for scrolling that is faster than drawing. */
const OVERSCAN = 10;

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
 * @template {{ element: HTMLElement }} R
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
    /** @type {Map<string, R>} the rows in the page, by what they show */
    this.shown = new Map();
    /** @type {R[]} */
    this.spare = [];
    this.rowHeight = 0;
    this.height = -1;
  }

  /**
   * Draw. A row that shows the same run as before keeps its element, so focus and pressed buttons live on. Elements
   * stand in the order of the rows, for those who hear the page. O(rows on the screen).
   * @param {T[]} items
   * @param {{ first: number, last: number }} onScreen
   * @param {number} pinned index of a row that stays in the page wherever it is, since it has the focus; -1: none
   */
  draw(items, onScreen, pinned) {
    const first = Math.max(0, onScreen.first - OVERSCAN);
    const last = Math.min(items.length, onScreen.last + OVERSCAN);
    const indexes = Array.from({ length: Math.max(0, last - first) }, (_, offset) => first + offset);
    if (pinned >= 0 && pinned < first) indexes.unshift(pinned);
    if (pinned >= last && pinned < items.length) indexes.push(pinned);
    this.stretch(items.length * this.rowHeight);
    this.release(new Set(indexes.map((index) => /** @type {T} */ (items[index]).run_id)));
    /** @type {Element | null} */
    let next = null;
    for (const index of indexes.reverse()) {
      const item = /** @type {T} */ (items[index]);
      let row = this.shown.get(item.run_id);
      if (row === undefined) {
        row = this.spare.pop() ?? this.make();
        this.shown.set(item.run_id, row);
        this.body.insertBefore(row.element, next);
      }
      this.fill(row, item, index);
      row.element.style.transform = `translateY(${index * this.rowHeight}px)`;
      next = row.element;
    }
    for (const row of this.spare) row.element.remove();
    this.spare.length = Math.min(this.spare.length, OVERSCAN);
  }

  /** @param {number} height */
  stretch(height) {
    if (height === this.height) return;
    this.height = height;
    this.body.style.height = `${height}px`;
  }

  /** @param {Set<string>} wanted */
  release(wanted) {
    for (const [id, row] of this.shown) {
      if (wanted.has(id)) continue;
      this.shown.delete(id);
      this.spare.push(row);
    }
  }
}
