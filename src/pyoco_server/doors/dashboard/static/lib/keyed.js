// A list whose elements stay the same while its items come and go: nothing is made anew under the hand.

/**
 * @template T
 * @typedef {{ element: HTMLElement, update: (item: T) => void }} Row
 */

/** @template T */
export class KeyedList {
  /**
   * @param {HTMLElement} element
   * @param {(item: T) => string} key
   * @param {(item: T) => Row<T>} make made once for each key, then updated
   */
  constructor(element, key, make) {
    this.element = element;
    this.key = key;
    this.make = make;
    /** @type {Map<string, Row<T>>} */
    this.rows = new Map();
  }

  /**
   * Show these, in this order; two of one key count once. O(items).
   * @param {T[]} items
   */
  show(items) {
    const focused = document.activeElement;
    const wanted = new Map(items.map((item) => [this.key(item), item]));
    for (const [key, row] of this.rows) {
      if (wanted.has(key)) continue;
      row.element.remove();
      this.rows.delete(key);
    }
    let next = this.element.firstElementChild;
    for (const [key, item] of wanted) {
      const row = this.rows.get(key) ?? this.make(item);
      this.rows.set(key, row);
      row.update(item);
      if (row.element === next) next = next.nextElementSibling;
      else this.element.insertBefore(row.element, next);
    }
    // An element that was moved has lost the focus on its way.
    if (focused instanceof HTMLElement && focused !== document.activeElement && this.element.contains(focused)) {
      focused.focus({ preventScroll: true });
    }
  }
}
