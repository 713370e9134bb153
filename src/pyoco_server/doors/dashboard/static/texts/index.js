// The two dictionaries, put together from one file for each part of the page. Both have the same keys: the type checker
// says so of each part, and a test of the whole.

import * as attention from "./attention.js";
import * as budgets from "./budgets.js";
import * as docs from "./docs.js";
import * as envelope from "./envelope.js";
import * as letters from "./letters.js";
import * as logs from "./logs.js";
import * as metrics from "./metrics.js";
import * as programs from "./programs.js";
import * as queues from "./queues.js";
import * as run from "./run.js";
import * as runs from "./runs.js";
import * as schedules from "./schedules.js";
import * as shell from "./shell.js";
import * as sweep from "./sweep.js";
import * as wheels from "./wheels.js";
import * as workers from "./workers.js";

export const en = Object.freeze({
  ...shell.en, ...attention.en, ...runs.en, ...run.en, ...workers.en, ...queues.en, ...letters.en, ...wheels.en,
  ...metrics.en, ...budgets.en, ...envelope.en, ...programs.en, ...docs.en, ...logs.en, ...sweep.en, ...schedules.en,
});

/** @type {Readonly<Record<keyof typeof en, string>>} */
export const ja = Object.freeze({
  ...shell.ja, ...attention.ja, ...runs.ja, ...run.ja, ...workers.ja, ...queues.ja, ...letters.ja, ...wheels.ja,
  ...metrics.ja, ...budgets.ja, ...envelope.ja, ...programs.ja, ...docs.ja, ...logs.ja, ...sweep.ja, ...schedules.ja,
});
