// What the page of a run shows, by the kind of the run. A new kind adds its line here, with sections of its own.

import { AttemptsSection } from "./run_attempts.js";
import { CommandsSection, ParamsSection } from "./run_aside.js";
import { DagSection } from "./run_dag.js";
import { ErrorSection } from "./run_error.js";
import { EnvelopeSection } from "./run_envelope.js";
import { GanttSection } from "./run_gantt.js";
import { LogsSection } from "./run_logs.js";
import { PackCommandsSection, PackResultSection, PackSection } from "./run_pack.js";
import { PackFailureSection } from "./run_pack_failure.js";
import { ProgramArchiveSection, ProgramEndSection, ProgramOutputSection } from "./run_program.js";
import { ProgramAskSection, ProgramCommandsSection, ProgramFactsSection, ProgramHistorySection } from "./run_program_ask.js";
import { RecordSection } from "./run_record.js";
import { ResultSection } from "./run_result.js";
import { TasksSection } from "./run_tasks.js";
import { TriesSection } from "./run_tries.js";
import { WaitSection } from "./run_wait.js";

/** @typedef {import("../lib/wire.js").Run} Run */
/**
 * What sections share.
 * @typedef {object} PlaceInRun
 * @property {string} id
 * @property {import("../lib/events.js").Signal<string | null>} selected the task that is looked at
 */
/** @typedef {PlaceInRun & import("../lib/log_filter.js").LogPlace} RunPage */
/**
 * @typedef {object} Section
 * @property {HTMLElement} element             hidden by the section itself while it has nothing to say
 * @property {(run: Run) => void} show         at each change and heartbeat: touches only what differs
 * @property {() => void} [close]
 */
/** @typedef {new (page: RunPage) => Section} SectionClass */
/** @typedef {{ main: SectionClass[], aside: SectionClass[] }} Sections */

/** Every kind has these; a kind that this page does not know, nothing else. */
const COMMON_MAIN = [WaitSection, ErrorSection, TriesSection, ResultSection];
const COMMON_ASIDE = [ParamsSection, AttemptsSection, CommandsSection];

/** @type {Map<string, Sections>} */
const KINDS = new Map([
  ["flow", { main: [...COMMON_MAIN, DagSection, GanttSection, LogsSection, TasksSection], aside: [RecordSection, ...COMMON_ASIDE] }],
  ["pack", { main: [WaitSection, PackFailureSection, EnvelopeSection, PackSection, LogsSection], aside: [PackResultSection, PackCommandsSection] }],
  ["exec", {
    main: [WaitSection, TriesSection, ProgramEndSection, LogsSection, ProgramOutputSection, ProgramArchiveSection, ProgramHistorySection],
    aside: [ProgramFactsSection, ProgramAskSection, ProgramCommandsSection],
  }],
]);

/**
 * @param {string | undefined} kind runs of an older gateway have none: flows
 * @returns {Sections}
 */
export function sectionsOf(kind) {
  return KINDS.get(kind ?? "flow") ?? { main: [...COMMON_MAIN, LogsSection], aside: COMMON_ASIDE };
}
