// Every panel of the dashboard, in the order of the menu. A new kind of run adds its panel here, and its sections of the
// page of a run in `views/run_kinds.js`; nothing else has to know of it.

import { openBudgets } from "./views/budgets.js";
import { openLetters } from "./views/letters.js";
import { openMetrics } from "./views/metrics.js";
import { openPrograms } from "./views/programs.js";
import { openQueues } from "./views/queues.js";
import { openRuns } from "./views/runs.js";
import { openRun } from "./views/run.js";
import { openSchedules } from "./views/schedules.js";
import { openSweep } from "./views/sweep.js";
import { openWheels } from "./views/wheels.js";
import { openWorkers } from "./views/workers.js";

/** @typedef {import("./lib/router.js").Place} Place */
/**
 * @typedef {object} View
 * @property {HTMLElement} element
 * @property {string} [title]                      for the window's title
 * @property {(place: Place) => boolean} [moved]   the address changed: true when the view has followed by itself
 * @property {() => void} [close]                  ends timers and streams
 * @property {(event: KeyboardEvent) => boolean} [onKey] true when the view has used the key
 */
/**
 * @typedef {object} Panel
 * @property {string} id
 * @property {import("./lib/i18n.js").TextKey} title
 * @property {string} key                          pressed after `g`
 * @property {(place: Place) => View} open
 */

/** @param {Place} place */
function openRunsAt(place) {
  if (place.rest.length === 0) return openRuns(place);
  return place.rest[0] === "sweep" ? openSweep(place) : openRun(place);
}

/** @type {Panel[]} */
export const panels = [
  { id: "runs", title: "runs.title", key: "r", open: (place) => openRunsAt(place) },
  { id: "schedules", title: "schedules.title", key: "s", open: openSchedules },
  { id: "workers", title: "workers.title", key: "w", open: openWorkers },
  { id: "queues", title: "queues.title", key: "q", open: openQueues },
  { id: "programs", title: "programs.title", key: "e", open: openPrograms },
  { id: "letters", title: "letters.title", key: "d", open: openLetters },
  { id: "wheels", title: "wheels.title", key: "p", open: openWheels },
  { id: "budgets", title: "budgets.title", key: "b", open: openBudgets },
  { id: "metrics", title: "metrics.title", key: "m", open: openMetrics },
];

export const home = "runs";
