"""Who may ask for which program, who may run it, and how much at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pyoco_server.core.programs.admission import CAP_MAX, allowed_cap, check_client, check_worker, matches_any
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.ports.acl.port import AclRecord

RECORD = AclRecord(api_key_ids=("k1", "k2"), execs=("calc*", "render"), max_cap=5, groups=("g?", "default"))


@pytest.mark.parametrize("by_key", [True, False])
@pytest.mark.parametrize(
    ("key", "exec_name", "group", "is_open"),
    [
        ("k1", "calcA", "default", True),
        ("k2", "render", "g1", True),
        ("k1", None, "g1", True),
        ("k1", "Calc", "g1", False),
        ("k1", "renderer", "g1", False),
        ("k1", "calcA", "g12", False),
        ("k1", None, "other", False),
    ],
)
def test_a_record_limits_whoever_the_client_is(
    key: str, exec_name: str | None, group: str, is_open: bool, by_key: bool
) -> None:
    """GRID-168"""
    if is_open:
        check_client(RECORD, key, exec_name, group, by_key=by_key)
        return
    with pytest.raises(GridRefused) as caught:
        check_client(RECORD, key, exec_name, group, by_key=by_key)
    assert caught.value.code is Code.FORBIDDEN


@pytest.mark.parametrize("record", [None, RECORD], ids=["no record", "another's record"])
@pytest.mark.parametrize("key", [None, "k3", ""])
def test_with_keys_on_nobody_is_a_client_or_a_worker_without_a_record_that_names_the_key(
    record: AclRecord | None, key: str | None
) -> None:
    """GRID-168, GRID-169: and nobody learns which of the two it was"""
    texts = set()
    checks: list[Callable[[], None]] = [
        lambda: check_client(record, key, "calcA", "default", by_key=True),
        lambda: check_worker(record, key, by_key=True),
    ]
    for check in checks:
        with pytest.raises(GridRefused) as caught:
            check()
        texts.add(caught.value.message)
    assert texts == {"this id is not open to this key"}
    check_client(record, key, "calcA", "default", by_key=False)
    check_worker(record, key, by_key=False)


@pytest.mark.parametrize(
    ("record", "desired", "cap"),
    [(None, 1, 1), (None, CAP_MAX + 5, CAP_MAX), (RECORD, 3, 3), (RECORD, 6, 5)],
)
def test_a_cap_is_lowered_and_never_refused(record: AclRecord | None, desired: int, cap: int) -> None:
    """GRID-168"""
    assert allowed_cap(record, desired) == cap


def test_patterns_are_case_sensitive_globs() -> None:
    """GRID-168"""
    assert matches_any(("x", "calc?"), "calcA")
    assert not matches_any(("calc?",), "CALCA")
    assert not matches_any((), "calcA")
    assert matches_any(("[ab]*",), "b-1")
