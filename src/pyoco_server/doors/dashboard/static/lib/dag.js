// Where the boxes and lines of a graph of tasks go. No DOM: names in, numbers out.
//
// In layers from left to right: a task stands one layer behind the last of those it waits for. Lines that pass a layer
// get a place of their own there, so that they go between the boxes. Within a layer, boxes stand where those they are
// joined to stand, on the average.

/**
 * @typedef {object} Size
 * @property {number} width   of a box
 * @property {number} height
 * @property {number} gapX    between layers
 * @property {number} gapY    between the boxes of a layer
 */
/** @typedef {{ name: string, layer: number, x: number, y: number }} Box x, y: its upper left corner */
/** @typedef {{ from: string, to: string, path: string }} Line path: for the `d` of an SVG path */
/** @typedef {{ boxes: Box[], lines: Line[], width: number, height: number }} Layout */
/**
 * A place in a layer: a task, or where a line passes.
 * @typedef {object} Spot
 * @property {string | null} name
 * @property {number} layer
 * @property {number} order   within its layer
 * @property {number} y       of its middle
 * @property {Spot[]} before  joined in the layer before
 * @property {Spot[]} behind
 */

/** More are shown as a list: nobody reads such a picture, and it would take its time. */
export const TASKS_MAX = 500;
/** A line beyond these goes straight; the shortest ones are served first. */
const PASSING_MAX = 3000;
const SWEEPS = 8;

/** @type {Size} */
const SIZE = { width: 184, height: 44, gapX: 52, gapY: 14 };

/**
 * O((n + e) log n) for n tasks and e lines, with a constant number of sweeps. A cycle is drawn, with one line going
 * back; an unknown name that is waited for is a task.
 * @param {Record<string, string[]>} graph task -> what it waits for
 * @param {Iterable<string>} [more] tasks that the graph may lack
 * @param {Size} [size]
 * @returns {Layout}
 */
export function layOut(graph, more = [], size = SIZE) {
  const waitsFor = tidied(graph, more);
  const layers = layered(waitsFor);
  const { columns, routes } = places(waitsFor, layers);
  arrange(columns);
  stack(columns, size);
  const step = size.width + size.gapX;
  const height = Math.max(0, ...columns.flat().map((spot) => spot.y + (spot.name === null ? 0 : size.height / 2)));
  /** @type {Box[]} */
  const boxes = [];
  for (const spot of columns.flat()) {
    if (spot.name === null) continue;
    boxes.push({ name: spot.name, layer: spot.layer, x: spot.layer * step, y: spot.y - size.height / 2 });
  }
  const lines = routes.map((route) => ({ from: route.from, to: route.to, path: curve(route.spots, size) }));
  return { boxes, lines, width: Math.max(0, columns.length * step - size.gapX), height };
}

/**
 * @param {Record<string, string[]>} graph
 * @param {Iterable<string>} more
 * @returns {Map<string, string[]>} every task once, waiting for each other task at most once
 */
function tidied(graph, more) {
  /** @type {Map<string, string[]>} */
  const waitsFor = new Map(Object.keys(graph).map((name) => [name, []]));
  for (const [name, before] of Object.entries(graph)) {
    const names = Array.isArray(before) ? before.filter((each) => typeof each === "string" && each !== name) : [];
    waitsFor.set(name, [...new Set(names)]);
    for (const each of names) if (!waitsFor.has(each)) waitsFor.set(each, []);
  }
  for (const name of more) if (!waitsFor.has(name)) waitsFor.set(name, []);
  return waitsFor;
}

/**
 * The longest way to each task. Where all that is left waits for each other, the first of them goes ahead.
 * @param {Map<string, string[]>} waitsFor
 * @returns {Map<string, number>}
 */
function layered(waitsFor) {
  const names = [...waitsFor.keys()];
  /** @type {Map<string, string[]>} */
  const unlocks = new Map(names.map((name) => [name, []]));
  const missing = new Map(names.map((name) => [name, /** @type {string[]} */ (waitsFor.get(name)).length]));
  for (const [name, before] of waitsFor) for (const each of before) unlocks.get(each)?.push(name);
  /** @type {Map<string, number>} */
  const layers = new Map();
  /** @type {Map<string, number>} */
  const least = new Map();
  const ready = names.filter((name) => missing.get(name) === 0);
  let next = 0;
  let stuck = 0;
  while (layers.size < names.length) {
    if (next === ready.length) {
      while (layers.has(/** @type {string} */ (names[stuck]))) stuck += 1;
      ready.push(/** @type {string} */ (names[stuck]));
    }
    const name = /** @type {string} */ (ready[next]);
    next += 1;
    if (layers.has(name)) continue;
    const layer = least.get(name) ?? 0;
    layers.set(name, layer);
    for (const each of unlocks.get(name) ?? []) {
      if (layers.has(each)) continue;
      least.set(each, Math.max(least.get(each) ?? 0, layer + 1));
      const left = (missing.get(each) ?? 1) - 1;
      missing.set(each, left);
      if (left === 0) ready.push(each);
    }
  }
  return layers;
}

/**
 * @param {Map<string, string[]>} waitsFor
 * @param {Map<string, number>} layers
 * @returns {{ columns: Spot[][], routes: { from: string, to: string, spots: Spot[] }[] }}
 */
function places(waitsFor, layers) {
  /** @type {Spot[][]} */
  const columns = [];
  /** @type {Map<string, Spot>} */
  const spots = new Map();
  const add = (/** @type {string | null} */ name, /** @type {number} */ layer) => {
    while (columns.length <= layer) columns.push([]);
    const column = /** @type {Spot[]} */ (columns[layer]);
    /** @type {Spot} */
    const spot = { name, layer, order: column.length, y: 0, before: [], behind: [] };
    column.push(spot);
    return spot;
  };
  for (const name of waitsFor.keys()) spots.set(name, add(name, layers.get(name) ?? 0));
  const edges = [...waitsFor].flatMap(([name, before]) => before.map((each) => ({
    from: /** @type {Spot} */ (spots.get(each)), to: /** @type {Spot} */ (spots.get(name)),
  })));
  edges.sort((one, two) => one.to.layer - one.from.layer - (two.to.layer - two.from.layer));
  let passing = 0;
  const routes = edges.map(({ from, to }) => {
    const between = to.layer - from.layer - 1;
    const route = [from];
    if (between > 0 && passing + between <= PASSING_MAX) {
      passing += between;
      for (let layer = from.layer + 1; layer < to.layer; layer += 1) route.push(add(null, layer));
    }
    route.push(to);
    for (let i = 1; i < route.length; i += 1) join(/** @type {Spot} */ (route[i - 1]), /** @type {Spot} */ (route[i]));
    return { from: /** @type {string} */ (from.name), to: /** @type {string} */ (to.name), spots: route };
  });
  return { columns, routes };
}

/**
 * @param {Spot} from
 * @param {Spot} to
 */
function join(from, to) {
  if (to.layer !== from.layer + 1) return; // goes straight, or back: it has no say in who stands where
  from.behind.push(to);
  to.before.push(from);
}

/**
 * Order each layer so that few lines cross: sweeps forth and back, the best order of all is kept.
 * @param {Spot[][]} columns
 */
function arrange(columns) {
  let best = columns.map((column) => [...column]);
  let fewest = crossings(columns);
  for (let sweep = 0; sweep < SWEEPS && fewest > 0; sweep += 1) {
    const forth = sweep % 2 === 0;
    for (const column of forth ? columns : [...columns].reverse()) {
      const wish = new Map(column.map((spot) => [spot, middle(forth ? spot.before : spot.behind, spot.order)]));
      column.sort((one, two) => (wish.get(one) ?? 0) - (wish.get(two) ?? 0) || one.order - two.order);
      number(column);
    }
    const found = crossings(columns);
    if (found < fewest) {
      fewest = found;
      best = columns.map((column) => [...column]);
    }
  }
  best.forEach((column, layer) => {
    columns[layer] = column;
    number(column);
  });
}

/** @param {Spot[]} column */
function number(column) {
  column.forEach((spot, order) => {
    spot.order = order;
  });
}

/**
 * @param {Spot[]} spots
 * @param {number} otherwise
 */
function middle(spots, otherwise) {
  return spots.length === 0 ? otherwise : spots.reduce((sum, spot) => sum + spot.order, 0) / spots.length;
}

/**
 * How many pairs of lines cross. O(e log n): inversions, counted with a tree of sums.
 * @param {Spot[][]} columns
 */
function crossings(columns) {
  let found = 0;
  for (let layer = 1; layer < columns.length; layer += 1) {
    const column = /** @type {Spot[]} */ (columns[layer]);
    const width = /** @type {Spot[]} */ (columns[layer - 1]).length;
    const sums = new Array(width + 1).fill(0);
    let seen = 0;
    for (const spot of column) {
      for (const from of spot.before) {
        let smaller = 0;
        for (let i = from.order + 1; i > 0; i -= i & -i) smaller += sums[i];
        found += seen - smaller;
      }
      for (const from of spot.before) {
        for (let i = from.order + 1; i <= width; i += i & -i) sums[i] += 1;
        seen += 1;
      }
    }
  }
  return found;
}

/**
 * Heights: each spot as near as possible to those it is joined to, in the order of its layer and with room between.
 * @param {Spot[][]} columns
 * @param {Size} size
 */
function stack(columns, size) {
  const room = (/** @type {Spot} */ spot) => (spot.name === null ? size.gapY * 0.6 : (size.height + size.gapY) / 2);
  for (const column of columns) settle(column, column.map(() => 0), room);
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const forth = sweep % 2 === 0;
    for (const column of forth ? columns : [...columns].reverse()) {
      const wishes = column.map((spot) => {
        const near = forth ? spot.before : spot.behind;
        const joined = near.length > 0 ? near : forth ? spot.behind : spot.before;
        return joined.length === 0 ? spot.y : joined.reduce((sum, each) => sum + each.y, 0) / joined.length;
      });
      settle(column, wishes, room);
    }
  }
  const spots = columns.flat();
  let top = Infinity;
  for (const spot of spots) top = Math.min(top, spot.y - (spot.name === null ? 0 : size.height / 2));
  for (const spot of spots) spot.y -= top;
}

/**
 * The heights nearest to the wishes, by least squares, that keep order and room: neighbours that would meet move as one.
 * O(n).
 * @param {Spot[]} column
 * @param {number[]} wishes
 * @param {(spot: Spot) => number} room half of what a spot takes
 */
function settle(column, wishes, room) {
  /** @type {number[]} */
  const offsets = [];
  /** @type {{ sum: number, count: number }[]} */
  const blocks = [];
  column.forEach((spot, i) => {
    const last = column[i - 1];
    const offset = last === undefined ? 0 : /** @type {number} */ (offsets[i - 1]) + room(last) + room(spot);
    offsets.push(offset);
    let block = { sum: /** @type {number} */ (wishes[i]) - offset, count: 1 };
    for (;;) {
      const above = blocks.at(-1);
      if (above === undefined || above.sum / above.count <= block.sum / block.count) break;
      blocks.pop();
      block = { sum: above.sum + block.sum, count: above.count + block.count };
    }
    blocks.push(block);
  });
  let i = 0;
  for (const block of blocks) {
    for (let n = 0; n < block.count; n += 1, i += 1) {
      /** @type {Spot} */ (column[i]).y = block.sum / block.count + /** @type {number} */ (offsets[i]);
    }
  }
}

/**
 * @param {Spot[]} spots
 * @param {Size} size
 */
function curve(spots, size) {
  const step = size.width + size.gapX;
  const round = (/** @type {number} */ value) => Math.round(value * 10) / 10;
  const first = /** @type {Spot} */ (spots[0]);
  let x = first.layer * step + size.width;
  let y = first.y;
  let path = `M${round(x)} ${round(y)}`;
  for (const spot of spots.slice(1)) {
    const end = spot.layer * step;
    const bend = Math.max(size.gapX / 2, (end - x) / 2);
    path += `C${round(x + bend)} ${round(y)} ${round(end - bend)} ${round(spot.y)} ${round(end)} ${round(spot.y)}`;
    x = end;
    y = spot.y;
    if (spot.name === null) {
      x += size.width;
      path += `H${round(x)}`;
    }
  }
  return path;
}
