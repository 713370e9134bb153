"""`--retry` and `--run-timeout`, and what `why` says of failed tries."""

from __future__ import annotations

import pytest

from pyoco_server.doors.cli.client.why import explain
from support.client_commands import Client
from support.client_runs import client, own_tag

__all__ = ["client", "own_tag"]


def test_a_submission_takes_a_policy_and_a_timeout(client: Client, own_tag: str) -> None:
    """RETRY-11, RETRY-20: a rerun keeps them, unless told otherwise."""
    asked = ("--retry", "3 times, fixed, 2s", "--run-timeout", "5m", "--tag", own_tag, "--json")
    run_id = client("submit", "hello", *asked).result["run_id"]
    found = client("get", run_id).result
    assert (found["retry"]["tries"], found["retry"]["backoff"], found["retry"]["delay"]) == (3, "fixed", 2.0)
    assert found["timeout"] == 300.0
    again = client("get", client("rerun", run_id, "--json").result["run_id"]).result
    assert (again["retry"], again["timeout"]) == (found["retry"], 300.0)
    none = client("get", client("rerun", run_id, "--retry", "none", "--json").result["run_id"]).result
    assert none["retry"] is None
    policy = '{"tries": 2, "retry_on": ["timeout"]}'
    other = client("get", client("submit", "hello", "--retry", policy, "--tag", own_tag, "--json").result["run_id"])
    assert other.result["retry"]["retry_on"] == ["timeout"]


@pytest.mark.parametrize("words", [("--retry", "often"), ("--retry", "{"), ("--run-timeout", "8d")])
def test_bad_ones_are_refused_before_anything_is_sent(client: Client, words: tuple[str, str]) -> None:
    """RETRY-20"""
    ended = client("submit", "hello", *words)
    assert ended.code != 0
    assert words[0] in ended.err


def test_why_lists_the_failed_tries() -> None:
    """RETRY-14, RETRY-17"""
    snapshot = {
        "run_id": "r",
        "status": "PENDING",
        "attempt": 2,
        "try": 2,
        "max_tries": 3,
        "waiting": {"message": "A try failed. The next one starts soon."},
        "tries": [{"try": 1, "kind": "exit:3", "error": "no luck"}],
        "earlier_attempts": [
            {"attempt": 1, "worker_id": "w1", "ended_at": 90.0, "why": "failed_try"},
            {"attempt": 2, "worker_id": "w2", "ended_at": 95.0, "why": "task_timeout"},
        ],
    }
    assert list(explain(snapshot, 100.0)) == [
        "A try failed. The next one starts soon.",
        "Try 1 of 3 failed (exit:3): no luck",
        "Attempt 2 on w2 was stopped, because a task took too long, 5.0 s ago.",
    ]
