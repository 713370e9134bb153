"""What `make test` leaves to `make thorough`, which is run every night.

Each of these is long, most start half a dozen processes or a browser, and what it proves is proved in `make test` too:
in another size, on another store, or by another road. Whoever names a file or a test gets it, thorough or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["THOROUGH", "is_thorough"]

#: By file: parts of the names of its tests, with their parameters. None at all: the whole file.
THOROUGH: Mapping[str, Sequence[str]] = {
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
    # The same on another store.
    "system/test_priced_kills.py": ("[quick_split]", "test_a_worker_that_is_frozen_for_too_long"),
    "system/test_priced_stacks.py": ("[postgres]",),
    "system/test_ocr_runs.py": ("[postgres]",),
    "actions/test_priced_races.py": ("at_the_same_moment[postgres]",),
    # Stores of earlier versions: the newest two are opened by everybody.
    "system/test_recovery_upgrade.py": ("[first]", "[flows]"),
    # The second start, the second signal, the second way to the same end.
    "system/test_cluster_demo.py": ("test_it_is_started_again_on_the_same_data",),
    "system/test_nats_bootstrap.py": (
        "test_killing_up_takes_the_nats_of_nats_bootstrap_with_it",
        "test_the_script_for_cron_makes_checked_backups_and_keeps_some",
    ),
    "system/test_priced_up.py": ("test_a_gateway_outlives_each_of_its_servers",),
    "system/test_up.py": (
        "test_a_second_signal_does_not_wait_for_anything",
        "test_a_door_beside_the_gateway_takes_jobs_over_tcp",
    ),
    "system/test_workers_over_http.py": ("test_a_keeper_forgets_who_is_long_gone",),
    "test_soak_bench.py": ("test_the_smallest_soak_finds_that_handles_and_consumers_do_not_grow",),
    # Corners of the dashboard.
    "browser/test_attention_strip.py": ("test_many_findings_are_dangers_first",),
    "browser/test_end_to_end.py": ("test_five_thousand_runs_are_reached_by_scrolling",),
    "browser/test_fleet.py": ("test_five_hundred_odd_workers_stay_in_place_while_they_change",),
    "browser/test_fleet_letters.py": ("test_what_is_done_to_many", "test_a_letter_that_comes_in_while_somebody_thinks"),
    "browser/test_fleet_wheels.py": ("test_files_that_wait_go_out_under_nobody_elses_key",),
    "browser/test_odd_values.py": ("test_an_odd_address_leads_to_a_page",),
    "browser/test_outages.py": ("test_a_run_is_followed_through_the_death_of_the_gateway",),
    "browser/test_pack_envelopes.py": ("however_long_they_are", "leaves_the_page_usable"),
    "browser/test_run_oddities.py": (),
    "browser/test_run_streams.py": (),
    "browser/test_run_words.py": (),
    "browser/test_shell.py": (
        "test_without_a_network_the_page_says_so_asks_little_and_heals",
        "test_too_many_wrong_keys_are_told_and_the_right_one_still_opens",
        "test_who_has_no_key_is_asked_whatever_else_is_away",
    ),
}


def is_thorough(node_id: str) -> bool:
    """By pytest's name of a test, which begins with the folder of the tests."""
    file, _, name = node_id.partition("::")
    parts = THOROUGH.get(file.partition("/")[2])
    return parts is not None and (not parts or any(part in name for part in parts))
