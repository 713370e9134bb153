// A long list is one stop of the tab key; arrows go on from there.

/**
 * @param {HTMLElement} list
 * @param {string} selector what can have the focus, one in each line
 * @param {boolean} [across] the lines are beside each other
 * @returns {() => void} to be called when lines came, went or were hidden. O(lines)
 */
export function rove(list, selector, across = false) {
  /** @type {HTMLElement | null} */
  let stop = null;
  const items = () => {
    const all = /** @type {HTMLElement[]} */ ([...list.querySelectorAll(selector)]);
    return all.filter((item) => !item.closest("[hidden]"));
  };
  /** @param {HTMLElement} item */
  const stopAt = (item) => {
    stop?.setAttribute("tabindex", "-1");
    item.setAttribute("tabindex", "0");
    stop = item;
  };
  const settle = () => {
    const all = items();
    for (const item of all) if (item !== stop) item.setAttribute("tabindex", "-1");
    const first = stop !== null && all.includes(stop) ? stop : all[0];
    if (first !== undefined) stopAt(first);
  };
  list.addEventListener("focusin", (event) => {
    if (event.target instanceof HTMLElement && event.target.matches(selector)) stopAt(event.target);
  });
  list.addEventListener("keydown", (event) => {
    const here = event.target;
    if (!(here instanceof HTMLElement) || !here.matches(selector)) return;
    const all = items();
    const at = all.indexOf(here);
    const [back, on] = across ? ["ArrowLeft", "ArrowRight"] : ["ArrowUp", "ArrowDown"];
    const to = { [back]: at - 1, [on]: at + 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    all[to]?.focus();
  });
  return settle;
}
