// What the gateway sends, as types. Optional members may be missing from older gateways: look before use.

export {};

/**
 * @typedef {object} WheelSync  what a worker has of the wheel registry
 * @property {number} [last_sync_at]
 * @property {string} [status]
 * @property {string[]} [installed]
 * @property {string[]} [installing]
 * @property {{ wheel_name: string, reason: string }[]} [skipped]
 * @property {{ wheel_name: string, error: string }[]} [failed]  `*`: trouble with all of them
 * @property {number} [installed_more]
 * @property {number} [skipped_more]
 * @property {number} [failed_more]
 */
/**
 * @typedef {object} Worker
 * @property {string} worker_id
 * @property {string} state
 * @property {boolean} [hidden]
 * @property {string} [instance_id]
 * @property {number | null} [updated_at]
 * @property {number} [last_seen_at]
 * @property {number} [last_heartbeat_at]
 * @property {number | null} [last_pull_at]
 * @property {string[]} [tags]
 * @property {number} [slots]
 * @property {number} [busy]
 * @property {string[]} [running]
 * @property {string | null} [last_run_status]
 * @property {number | null} [stopped_at]
 * @property {string | null} [stop_reason]
 * @property {number} [host_restarts]
 * @property {Record<string, string>} [versions]
 * @property {WheelSync | null} [wheel_sync]
 */
/**
 * @typedef {object} Schema  JSON Schema, as far as a form needs it
 * @property {string | string[]} [type]
 * @property {string} [format]
 * @property {unknown} [default]
 * @property {unknown[]} [enum]
 * @property {Schema[]} [anyOf]
 * @property {Record<string, Schema>} [properties]
 * @property {string[]} [required]
 */
/**
 * @typedef {object} OfferedFlow  a flow that live workers announce
 * @property {string} name
 * @property {string} doc
 * @property {string[]} tags  of its runs; empty: as for any run
 * @property {string} tag     to submit it with
 * @property {Schema} params  empty: unknown
 */
/**
 * @typedef {object} Queue
 * @property {string} tag
 * @property {number} depth
 * @property {number | null} [oldest_at]
 * @property {number | null} [oldest_age_seconds]
 * @property {number} [workers_alive]
 * @property {number} [slots]
 * @property {number} [slots_busy]
 * @property {number | null} [depth_before]  ten minutes ago
 * @property {number | null} [drained_per_minute]
 * @property {number | null} [eta_seconds]
 */
/**
 * @typedef {object} Letter
 * @property {string} id           a number that grows
 * @property {number} timestamp
 * @property {string} reason
 * @property {string | null} [error]
 * @property {string} [tag]
 * @property {string[]} [tags]
 * @property {string} [run_id]
 * @property {string} [flow_name]
 * @property {string} [worker_id]
 * @property {number} [num_delivered]
 * @property {string} [subject]
 * @property {string} [api_key_id]
 * @property {string} [kind]       this and the next eight: of programs
 * @property {string} [job_id]
 * @property {string} [group]
 * @property {string} [exec_name]
 * @property {string} [client_id]
 * @property {number} [attempt]
 * @property {number} [lost]
 * @property {number} [exit_code]
 * @property {string} [error_code]
 */
/** @typedef {Letter & { run_status?: string, redrivable?: boolean }} LetterDetail */
/** @typedef {{ reason: string, flow_name: string | null, count: number, newest_at: number }} LetterGroup */
/** @typedef {{ total: number, groups: LetterGroup[] }} LetterCounts */
/**
 * @typedef {object} Wheel
 * @property {string} name
 * @property {number} size_bytes
 * @property {number} modified
 * @property {string | null} [sha256_hex]
 * @property {string[]} tags
 */
/**
 * @typedef {object} WheelEvent
 * @property {string} event_id
 * @property {number} occurred_at
 * @property {string} action
 * @property {string} wheel_name
 * @property {string[]} [tags]
 * @property {{ via?: string, remote_addr?: string | null, user_agent?: string | null }} [source]
 * @property {{ tenant_id?: string | null, api_key_id?: string | null }} [actor]
 * @property {number | null} [size_bytes]
 */
/**
 * @typedef {object} TaskRecord
 * @property {string} [state]
 * @property {number | null} [started_at]
 * @property {number | null} [ended_at]
 * @property {number | null} [duration_ms]
 * @property {string | null} [error]
 * @property {string | null} [traceback]
 * @property {unknown} [inputs]
 * @property {unknown} [output]
 * @property {boolean} [output_truncated]
 * @property {RunResult} [output_ref]
 * @property {NotKept} [output_error]
 * @property {unknown} [artifacts]
 */
/** @typedef {{ err_id?: string, message?: string, message_ja?: string }} NotKept  why a value could not be kept */
/**
 * @typedef {object} RunResult
 * @property {string} [href]
 * @property {string} [content_type]
 * @property {number} [bytes]
 * @property {unknown} [value]
 * @property {string} [preview]
 * @property {boolean} [truncated]
 * @property {NotKept} [error]
 */
/**
 * @typedef {object} EarlierAttempt
 * @property {number} [attempt]
 * @property {string | null} [worker_id]
 * @property {number | null} [started_at]
 * @property {number | null} [ended_at]
 * @property {string} [why]
 */
/** @typedef {{ what: string, at: number, by?: { kind: string, id?: string | null } }} LastChange */
/**
 * @typedef {object} Waiting
 * @property {string} reason
 * @property {string} message
 * @property {string} [message_ja]
 * @property {number} [position]
 * @property {boolean} [position_capped]
 * @property {number} [workers_alive]
 * @property {number} [slots]
 * @property {number} [slots_busy]
 * @property {{ run_id?: string, submitted_at?: number, age_seconds: number } | null} [oldest_ahead]
 */
/**
 * @typedef {object} Cost  of a priced run, in millionths of a dollar
 * @property {number} [reserved_usd_micros]
 * @property {number} [used_usd_micros]
 * @property {number} [minimum_fee_usd_micros]
 */
/**
 * @typedef {object} Budget  of a tenant, in millionths of a dollar
 * @property {string} tenant_id
 * @property {string} [display_name]
 * @property {string} [status]
 * @property {number} [balance_usd_micros]
 * @property {number} [held_usd_micros]
 * @property {number} [charged_usd_micros]
 * @property {number} [credited_usd_micros]
 */
/**
 * @typedef {object} JournalLine
 * @property {number} txn_id
 * @property {string} kind
 * @property {string | null} [run_id]
 * @property {string} [actor]
 * @property {string | null} [memo]
 * @property {number} [created_at]
 * @property {number} [available_usd_micros]
 * @property {number} [held_usd_micros]
 * @property {number} [charged_usd_micros]
 */
/** @typedef {{ start_at: number, charged_usd_micros: number, runs: number }} SpendStep */
/**
 * @typedef {object} Run  a snapshot, and what the gateway adds to it
 * @property {string} run_id
 * @property {string} [kind]
 * @property {string} flow_name
 * @property {string} status
 * @property {string} [tag]
 * @property {string[]} [tags]
 * @property {Record<string, unknown>} [params]
 * @property {boolean} [params_truncated]
 * @property {Record<string, string>} [tasks]
 * @property {Record<string, TaskRecord | null>} [task_records]
 * @property {boolean} [task_records_truncated]
 * @property {Record<string, string[]>} [graph]     task -> what it waits for
 * @property {number} [attempt]
 * @property {EarlierAttempt[]} [earlier_attempts]
 * @property {number | null} [submitted_at]
 * @property {number | null} [start_time]
 * @property {number | null} [end_time]
 * @property {number | null} [heartbeat_at]
 * @property {number} [updated_at]
 * @property {string | null} [error]
 * @property {string} [reason]
 * @property {string} [attempt_id]
 * @property {string} [worker_id]
 * @property {string} [instance_id]
 * @property {string} [tenant_id]
 * @property {string} [api_key_id]
 * @property {string} [rerun_of]
 * @property {string} [workflow_yaml_sha256]
 * @property {number} [workflow_yaml_bytes]
 * @property {number} [cancel_requested_at]
 * @property {string} [cancel_reason]
 * @property {string} [cancel_requested_by]
 * @property {number} [cancel_deadline_at]
 * @property {RunResult} [result]
 * @property {string} [letter_id]
 * @property {string[]} [rerun_ids]
 * @property {string} [ended_by]
 * @property {LastChange} [last_change]
 * @property {Waiting} [waiting]
 * @property {number} [try]                         this and the next two: with a retry policy
 * @property {number} [max_tries]
 * @property {Record<string, unknown>[]} [tries]
 * @property {string} [pack_type]                   this and the next ten: of priced runs
 * @property {string} [priced_status]
 * @property {string} [money_state]
 * @property {boolean} [finalizing]
 * @property {string | null} [reason_code]
 * @property {Cost} [cost]
 * @property {number} [tokens_consumed]
 * @property {number} [timebox_sec]
 * @property {number} [min_reliability_score]
 * @property {string | null} [trace_id]
 * @property {number} [ledger_version]
 * @property {string} [job_id]                      this and the next seventeen: of programs
 * @property {string} [group]
 * @property {string} [exec_name]
 * @property {string} [client_id]
 * @property {number} [max_attempts]
 * @property {number} [lost]
 * @property {number} [not_before]
 * @property {number} [exit_code]
 * @property {string} [error_code]
 * @property {string} [stdout_tail]
 * @property {string} [stderr_tail]
 * @property {boolean} [stdout_truncated]
 * @property {boolean} [stderr_truncated]
 * @property {{ name: string, size: number, sha256: string }[]} [artifacts]
 * @property {number} [run_seconds]
 * @property {boolean} [dlq_due]
 * @property {boolean} [dlq_done]
 * @property {string} [retry_of]
 * @property {boolean} [worker_alive]
 * @property {number} [worker_heartbeat_at]
 * @property {string[]} [worker_tags]
 * @property {string} [worker_state]
 * @property {RunSchedule} [schedule]
 * @property {number} [worker_told_at]              set by the page: when an answer last said how the worker is
 * @property {boolean} [redacted]                   a priced run, to those without its key
 * @property {number} [gone_at]                     set by the page: since when it is no longer stored
 */
/**
 * @typedef {object} RunSummary  one line of `GET /runs`
 * @property {string} [params_preview]
 * @property {string} run_id
 * @property {string} status
 * @property {number} updated_at
 * @property {string} [kind]
 * @property {string} [flow_name]
 * @property {string} [tag]
 * @property {string[]} [tags]  labels
 * @property {number} [submitted_at]
 * @property {number} [start_time]
 * @property {number} [end_time]
 * @property {number} [heartbeat_at]
 * @property {string} [worker_id]
 * @property {string} [error]
 * @property {string} [money_state]  of priced runs
 * @property {Cost} [cost]
 * @property {boolean} [redacted]  the rest is only told with a key of the tenant
 * @property {string} [exec_name]  this and the next three: of programs
 * @property {string} [client_id]
 * @property {number} [attempt]
 * @property {number} [exit_code]
 */
/** @typedef {{ items: RunSummary[], next_cursor: string | null }} RunPage */
/**
 * @typedef {object} RunsCancelled  of `POST /runs/cancel`, in runs
 * @property {number} matched
 * @property {number} asked
 * @property {number} already_cancelling
 * @property {number} already_ended
 * @property {number} not_found
 * @property {number} failed
 * @property {boolean} more  there may be more that fit: ask again
 */
/** @typedef {{ queued: number, inflight: number, oldest_age_seconds: number | null }} ExecQueue */
/**
 * @typedef {object} ExecJob  one that runs
 * @property {string} run_id
 * @property {string} job_id
 * @property {string} status
 * @property {string} [exec]
 * @property {string} [client]
 * @property {string} [worker]
 * @property {number} [attempt]
 * @property {number} [since]
 */
/**
 * @typedef {object} ExecWorker
 * @property {string} worker_id
 * @property {string} [kind]
 * @property {string[]} [patterns]
 * @property {number} [credits]
 * @property {string[]} [running]
 * @property {number} [max_parallel]
 * @property {number} [busy]
 * @property {string} [door_id]
 * @property {number} [cpu]
 * @property {number} [last_seen_at]
 * @property {string} [state]
 */
/** @typedef {{ door_id: string, addr?: string, state?: string, started_at?: number, connections?: number }} ExecDoor */
/** @typedef {{ name: string, leader?: boolean, current?: boolean, lag?: number }} ExecReplica */
/**
 * @typedef {object} ExecGroup  of `GET /exec/state`
 * @property {Record<string, ExecQueue>} [queues]            by program
 * @property {Record<string, ExecJob>} [inflight]            by job
 * @property {{ count: number, last_sequence: number | null }} [dlq]
 * @property {Record<string, number>} [client_cap]
 * @property {Record<string, number>} [client_inflight]
 * @property {ExecDoor[]} [doors]
 * @property {ExecWorker[]} [workers]
 * @property {Record<string, ExecReplica[]>} [replicas]      by stream
 * @property {Record<string, number>} [p95]                  by program
 */
/**
 * @typedef {object} ExecEvent
 * @property {number} ts
 * @property {string} event
 * @property {string} [group]
 * @property {string} [run_id]
 * @property {string} [exec_name]
 * @property {string} [client_id]
 * @property {number} [attempt]
 * @property {string} [worker_id]
 * @property {string} [holder]
 * @property {string} [detail]
 */
/**
 * @typedef {object} LogLine  of `GET /runs/{id}/logs`
 * @property {string} id       `attempt.seq`
 * @property {number} attempt
 * @property {number} seq
 * @property {number} ts
 * @property {string | null} [task]
 * @property {string} stream
 * @property {string | null} [level]
 * @property {string | null} [logger]
 * @property {string} text
 * @property {number} [cut_bytes]
 * @property {string} [exc]
 * @property {"gap"} [event]   this and the next three: lines are missing here
 * @property {number | null} [missing_lines]
 * @property {number | null} [missing_bytes]
 * @property {string} [why]
 */
/** @typedef {{ id: string, name: string, tick: number, source?: string }} RunSchedule  what a tick adds to its run */
