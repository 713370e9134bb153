// What the gateway sends of schedules, as types; see `wire.js`.

export {};

/**
 * @typedef {object} ScheduleTick
 * @property {number} tick
 * @property {number} due_at
 * @property {number} handled_at
 * @property {string} source
 * @property {string} outcome
 * @property {string} [run_id]
 * @property {string} [run_status]  absent: the run is no longer stored, or a list has not asked
 * @property {string} [reason]
 * @property {string} [err_id]
 * @property {string} [message]
 * @property {string} [message_ja]
 * @property {number} [count]       of a series of missed ticks
 * @property {number} [last_tick]
 */
/**
 * @typedef {object} Schedule
 * @property {string} id
 * @property {string} name
 * @property {Record<string, unknown>} what
 * @property {{ cron?: string, every?: number, offset?: number, at?: number[] }} when
 * @property {string} timezone
 * @property {number | null} start_at
 * @property {number | null} end_at
 * @property {number} jitter
 * @property {string} overlap
 * @property {{ policy: string, window: number }} catch_up
 * @property {boolean} paused
 * @property {string | null} pause_reason
 * @property {string[]} labels
 * @property {number} created_at
 * @property {number} updated_at
 * @property {string | null} updated_by
 * @property {number[]} next_ticks
 * @property {ScheduleTick} [last_tick]
 * @property {number} waiting_ticks
 * @property {boolean} overdue
 */
/** @typedef {{ tick: number, local: string, dst: string | null, latest_at: number }} PreviewTick */
