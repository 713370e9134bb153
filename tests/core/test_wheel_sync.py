"""What a worker has of the wheel registry, and when it tries again what failed."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.wheel import Skipped
from pyoco_server.core.wheel_sync import (
    FailedWheel,
    Hurdle,
    InstalledWheel,
    SyncReport,
    Trouble,
    read_installed,
    trouble_again,
)

ENTRY = InstalledWheel(
    wheel_name="my_tasks-1.0-py3-none-any.whl",
    package_name="my-tasks",
    package_version="1.0",
    nuid="n1",
    size_bytes=3,
    sha256_hex="ab",
    tags=("gpu", "cpu"),
    installed_at=12.5,
)


def test_an_entry_of_the_manifest_is_read_as_it_was_written() -> None:
    """FLOW-238"""
    assert read_installed(json.loads(json.dumps(asdict(ENTRY)))) == ENTRY


@pytest.mark.parametrize("name", list(asdict(ENTRY)))
@pytest.mark.parametrize("wrong", [None, {}, True])
def test_an_entry_that_is_not_what_it_should_be_is_none(name: str, wrong: object) -> None:
    """FLOW-239"""
    document = json.loads(json.dumps(asdict(ENTRY)))
    assert read_installed({**document, "more": 1}) == ENTRY
    if not (wrong is True and name in {"size_bytes", "installed_at"}):  # true is a number in Python
        assert read_installed({**document, name: wrong}) is None
    del document[name]
    assert read_installed(document) is None


@given(
    st.recursive(
        st.none() | st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_whatever_stands_in_a_manifest_is_an_entry_or_none(anything: object) -> None:
    """FLOW-239"""
    assert read_installed(anything) is None


def test_a_report_has_the_shape_that_the_registry_shows() -> None:
    """FLOW-243"""
    report = SyncReport(
        last_sync_at=5.0,
        installed=("a.whl",),
        skipped=(Skipped("b.whl", "why"),),
        removed=("c.whl",),
        failed=(FailedWheel("d.whl", "how"),),
    )
    assert report.document() == {
        "enabled": True,
        "last_sync_at": 5.0,
        "status": "error",
        "installed": ["a.whl"],
        "skipped": [{"wheel_name": "b.whl", "reason": "why"}],
        "removed": ["c.whl"],
        "failed": [{"wheel_name": "d.whl", "error": "how"}],
    }
    assert replace(report, failed=()).status == "ok"


def fail_often(times: int, every_seconds: float) -> list[float]:
    """The pauses after each of so many failures of one upload."""
    trouble: Trouble | None = None
    pauses = []
    for _ in range(times):
        trouble = trouble_again(trouble, "n1", Hurdle.INSTALLING, "why", 100.0, every_seconds)
        pauses.append(trouble.again_at - 100.0)
    return pauses


def test_what_fails_again_and_again_is_tried_less_and_less_often() -> None:
    """FLOW-242"""
    assert fail_often(7, 10.0) == [10, 20, 40, 80, 160, 300, 300]
    assert fail_often(3, 900.0) == [900, 900, 900]
    assert fail_often(5000, 0.1)[-1] == 300


def test_another_upload_begins_anew() -> None:
    """FLOW-242"""
    last = Trouble(nuid="n1", hurdle=Hurdle.INSTALLING, error="why", times=6, again_at=0.0)
    assert trouble_again(last, "n2", Hurdle.INSTALLING, "why", 100.0, 10.0).again_at == 110.0
