"""The one place where doors ask what the ACL says: keys, caps, operators."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pyoco_server.actions.programs.admit import (
    admit_client,
    admit_operator,
    admit_worker,
    effective_cap,
    is_operator,
    may_run,
)
from pyoco_server.config import GridConfig
from pyoco_server.core.programs.faults import GridRefused
from pyoco_server.core.run import Caller
from pyoco_server.ports.acl.port import AclRecord
from pyoco_server.ports.programs import Programs

MINE, OTHER = Caller("t", "k1"), Caller("t", "k2")


def programs(auth: str, **records: AclRecord) -> Programs:
    def find(kind: str, of: str) -> AclRecord | None:
        return records.get(f"{kind}_{of}")

    config = GridConfig(exec_auth=auth, exec_operator_keys=("op",))
    return cast(Programs, SimpleNamespace(config=config, acl=cast(Any, SimpleNamespace(find=find))))


RECORDS = {
    "client_c": AclRecord(api_key_ids=("k1",), execs=("calc*",), max_cap=3),
    "worker_w": AclRecord(api_key_ids=("k1",), execs=("calc*",)),
}


def test_with_keys_on_the_record_decides_for_client_and_worker() -> None:
    """GRID-168"""
    some = programs("api_key", **RECORDS)
    admit_client(some, MINE, "c", "calcA", "default")
    admit_client(some, MINE, "c", None, "default")
    admit_worker(some, MINE, "w")
    refused: list[Callable[[], None]] = [
        lambda: admit_client(some, OTHER, "c", "calcA", "default"),
        lambda: admit_client(some, MINE, "c", "other", "default"),
        lambda: admit_client(some, MINE, "unknown", "calcA", "default"),
        lambda: admit_client(some, Caller(), "c", "calcA", "default"),
        lambda: admit_worker(some, OTHER, "w"),
        lambda: admit_worker(some, MINE, "unknown"),
    ]
    for ask in refused:
        with pytest.raises(GridRefused, match="FORBIDDEN"):
            ask()


@pytest.mark.parametrize(
    ("auth", "worker", "exec_name", "allowed"),
    [
        ("api_key", "w", "calcA", True),
        ("api_key", "w", "other", False),
        ("api_key", "unknown", "calcA", False),
        ("none", "w", "other", False),
        ("none", "unknown", "other", True),
    ],
)
def test_a_worker_gets_what_its_record_allows_whatever_its_pattern(
    auth: str, worker: str, exec_name: str, allowed: bool
) -> None:
    """GRID-168"""
    assert may_run(programs(auth, **RECORDS), worker, exec_name) is allowed


def test_a_cap_above_what_the_record_allows_is_lowered() -> None:
    """GRID-168"""
    assert effective_cap(programs("none", **RECORDS), "c", 9) == 3
    assert effective_cap(programs("none"), "c", 9) == 9


def test_operators_are_named_and_without_keys_everybody_is_one() -> None:
    some = programs("none")
    assert is_operator(some, Caller())
    assert is_operator(some, Caller("any", "op"))
    assert not is_operator(some, MINE)
    admit_operator(some, Caller("any", "op"))
    with pytest.raises(GridRefused, match="EXEC_OPERATOR_KEYS"):
        admit_operator(some, MINE)
