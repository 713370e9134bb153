"""What `make test` leaves to `make thorough`, which is run every night.

What each of these proves is proved in `make test` too: in another size, on another store, or by another road. Only some
corners of the dashboard are looked at nowhere else. Whoever names a file or a test gets it, thorough or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["THOROUGH", "is_thorough"]

#: By file: parts of the names of its tests, with their parameters. None at all: the whole file.
THOROUGH: Mapping[str, Sequence[str]] = {
    # The simulator itself is under test here; what it says of the product is in the suite.
    "simulation/test_defects.py": (),
    "simulation/test_seeds.py": (
        "test_a_failing_seed_is_shrunk",
        "test_a_history_does_not_depend_on_the_interpreter",
        *(f"faults_of_a_seed[{seed}]" for seed in range(9, 16)),  # the suite has eight seeds
    ),
    # The short storm of `system/test_storm.py` is judged by the same history.
    "storm_tests/test_storm_tempest.py": ("test_in_a_tempest_each_run_is_one_register_and_ends_once[1]",),
    # Doors that are killed and restarted under load: `grid/test_proof_11_doors.py`, with one client.
    "client/frames/test_grid_multi_client.py": ("test_every_job_has_one_result_while_doors_come_and_go",),
    # Each kind of worker and each hostile name by itself: `executors/test_program_run_files.py` and the other proofs.
    "grid/test_proof_20_names.py": (),
    "grid/test_proof_26_lanes.py": (),
    # The suite has a short storm with one double kill, and simulations in virtual time.
    "system/test_storm.py": ("[one]", "[three]"),
    # Kills, clocks and outages, one at a time. The storms have all of them at once, over all three kinds of run.
    "system/test_chaos_clock_differences.py": (),
    "system/test_chaos_clocks.py": (),
    "system/test_chaos_everything.py": (),
    "system/test_chaos_nats.py": (),
    "system/test_chaos_processes.py": (),
    "system/test_chaos_watchers.py": (),
    "system/test_worker_processes.py": (
        "test_no_accepted_run_is_lost_when_nats_is_killed_under_load",
        "test_with_a_time_limit_hands_the_run_back",
        "examples.flows:",
    ),
    # A cluster that loses a node or its leader: `system/test_nats_bootstrap.py` kills a node, and
    # `system/test_cluster_rolling.py` restarts each of them under load.
    "grid/test_proof_12_cluster.py": ("test_a_cluster_loses_its_leader_and_then_a_disk_and_goes_on",),
    # The test beside it changes all copies on three nodes too, without load and without a kill.
    "system/test_cluster_replicas.py": ("test_copies_are_changed_in_place_and_no_request_fails",),
    "grid/test_proof_03_fuzz.py": ("test_whatever_a_door_hears_good_jobs_go_on",),
    "grid/test_proof_33_router.py": ("test_routers_that_are_killed_and_a_lost_group_cost_no_job",),
    # The same on another store. What is the store's own stays.
    "system/test_priced_kills.py": (
        "[quick_split]",
        "test_a_worker_that_is_frozen_for_too_long",
        "test_a_killed_worker_costs_the_minimum_fee_and_so_does_a_killed_pack",
    ),
    "system/test_priced_stacks.py": ("[postgres]",),
    "system/test_ocr_runs.py": ("[postgres]",),
    "actions/test_priced_races.py": (
        "[postgres]",
        "[postgres-",
        "[split]",
        "[split-",
        "at_the_same_moment[quick_split]",
    ),
    "actions/test_priced_crashes.py": ("[postgres]", "[postgres-", "[split]", "[split-"),
    "actions/test_priced_modes.py": ("[postgres-",),
    "actions/test_priced_model.py": ("[quick_split]",),
    "actions/test_priced_uploading.py": ("[postgres]",),
    "actions/test_priced_ways_out.py": ("in_the_ledger_is_disputed[postgres]",),
    "doors/test_cli_packs.py": ("[sqs]",),
    "executors/test_small_packs.py": ("characters_that_databases_mind[postgres]",),
    "ports/test_audit.py": ("test_one_micro_is_found_wherever_it_is[postgres-",),
    "ports/test_budget_postgres.py": ("TestBudgetInPostgres",),
    "ports/test_ledger_postgres.py": ("TestPostgresLedger",),
    "ports/test_pack_queue_sqs.py": ("TestSqsPackQueue",),
    # The same in another size.
    "doors/test_http_keys.py": ("test_asks_for_a_key_however_it_is_written[every method]",),
    "doors/test_schemathesis.py": ("test_whatever_is_asked_with_a_key_is_answered_as_documented",),
    "ports/test_budgets_agree.py": ("[a long life]",),
    "ports/test_index_sqlite.py": ("TestSqliteIndexMoreWalks",),
    # Stores of earlier versions: the newest is opened by everybody, and the last one holds all that the others do.
    "system/test_recovery_upgrade.py": ("[first]", "[flows]", "[priced]"),
    # A whole deployment is killed, or loses its servers. Its parts are, one by one.
    "system/test_priced_up.py": (
        "test_a_gateway_outlives_each_of_its_servers",
        "test_up_that_is_killed_loses_no_run_and_no_money",
    ),
    # The second start, the second signal, the second way to the same end.
    "doors/test_cli_backup.py": ("test_an_interrupted_backup_leaves_nothing[15]",),
    "doors/test_http_silent_feed.py": ("test_a_silent_feed_makes_lists_unavailable_until_it_is_heard_again[/dlq]",),
    "doors/test_http_watch_ends.py": (
        "test_a_signal_ends_open_streams_at_once[uvicorn]",
        "test_a_client_that_read_nothing_may_leave[reset]",
    ),
    "doors/test_mcp_stdio.py": (
        "test_it_ends_at_once_when_it_is_told_to[SIGTERM]",
        "test_it_ends_at_once_when_it_is_told_to[end of input]",
        "test_an_agent_submits_polls_and_is_refused[legacy]",
        "test_a_strange_answer_does_not_end_it",
        "test_a_bad_key_is_told_by_the_tool",
    ),
    "executors/test_hosts.py": (
        "forges_its_own_answer_costs_its_own_run[junk]",
        "forges_its_own_answer_costs_its_own_run[{}]",
        "forges_its_own_answer_costs_its_own_run[NaN]",
    ),
    "system/test_cluster_demo.py": ("test_it_is_started_again_on_the_same_data",),
    "system/test_nats_bootstrap.py": (
        "test_killing_up_takes_the_nats_of_nats_bootstrap_with_it",
        "test_the_script_for_cron_makes_checked_backups_and_keeps_some",
    ),
    "system/test_up.py": (
        "test_a_second_signal_does_not_wait_for_anything",
        "test_a_door_beside_the_gateway_takes_jobs_over_tcp",
    ),
    "system/test_workers_over_http.py": ("test_a_keeper_forgets_who_is_long_gone",),
    "repository/test_soak_bench.py": (
        "test_the_smallest_soak_finds_that_handles_and_consumers_do_not_grow",
        "test_a_soak_that_is_stopped_tells_what_it_has_and_leaves_nothing",
    ),
    # Corners of the dashboard.
    "browser/test_access.py": (
        "test_a_phone_never_scrolls_sideways[en]",
        "test_moving_pictures_stop_when_the_reader_wants_it",
    ),
    "browser/test_attention_strip.py": (
        "test_it_is_read_aloud_when_something_came_or_went",
        "test_many_findings_are_dangers_first",
    ),
    "browser/test_budgets_panel.py": (
        "test_a_started_pack_in_dispute_waits_for_an_operator",
        "test_many_tenants_come_page_by_page",
        "test_on_a_phone_each_entry_of_the_journal_is_a_card",
    ),
    "browser/test_end_to_end.py": (
        "test_a_run_is_submitted_again_from_the_page",
        "test_five_thousand_runs_are_reached_by_scrolling",
    ),
    "browser/test_fleet.py": (
        "test_filters_of_workers_are_in_the_address",
        "test_five_hundred_odd_workers_stay_in_place_while_they_change",
    ),
    "browser/test_fleet_dead_letters.py": (
        "test_a_command_that_would_be_refused_is_not_shown",
        "test_a_late_answer_does_not_pull_anybody_back",
        "test_a_letter_of_an_address_is_shown_though_the_list_leaves_it_out",
        "test_a_letter_that_comes_in_while_somebody_thinks",
        "test_the_focus_of_a_chip_that_goes_is_passed_on",
        "test_typing_leaves_no_steps_behind_and_the_way_back_is_shown",
        "test_what_fits_a_filter_is_loaded_page_by_page",
        "test_what_is_done_to_many",
    ),
    "browser/test_fleet_wheels.py": ("test_files_that_wait_go_out_under_nobody_elses_key",),
    "browser/test_odd_values.py": ("test_an_odd_address_leads_to_a_page",),
    "browser/test_outages.py": (),
    "browser/test_pack_envelopes.py": ("however_long_they_are", "leaves_the_page_usable"),
    "browser/test_programs.py": ("test_a_failed_program_is_found_among_the_dead_letters_and_requeued[ja]",),
    "browser/test_run_again.py": ("test_what_cannot_be_changed_cannot_be_edited_and_a_refusal_is_told[more1",),
    "browser/test_run_oddities.py": (),
    "browser/test_run_streams.py": (),
    "browser/test_run_words.py": (),
    "browser/test_runs.py": (
        "test_a_box_that_was_ticked_takes_no_letters",
        "test_an_age_goes_on_while_no_answer_comes",
        "test_enter_opens_nothing_when_several_runs_match",
        "test_on_a_phone_the_runs_come_first_and_nothing_is_lost",
        "test_one_clock_that_is_fast_does_not_stop_the_list",
    ),
    "browser/test_shell.py": (
        "test_a_toast_takes_the_place_of_the_one_it_makes_untrue",
        "test_coming_back_one_is_where_one_was",
        "test_too_many_wrong_keys_are_told_and_the_right_one_still_opens",
        "test_who_has_no_key_is_asked_whatever_else_is_away",
    ),
    # Each link and anchor of each page is followed without building the site.
    "repository/test_docs_site.py": ("test_a_link_that_leads_nowhere_ends_the_build",),
}


def is_thorough(node_id: str) -> bool:
    """By pytest's name of a test, which begins with the folder of the tests."""
    file, _, name = node_id.partition("::")
    parts = THOROUGH.get(file.partition("/")[2])
    return parts is not None and (not parts or any(part in name for part in parts))
