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
    WheelTrouble,
    read_installed,
    read_trouble,
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
        installing=("e.whl",),
        skipped=(Skipped("b.whl", "why"),),
        removed=("c.whl",),
        failed=(FailedWheel("d.whl", "how"),),
    )
    assert report.document() == {
        "enabled": True,
        "last_sync_at": 5.0,
        "status": "error",
        "installed": ["a.whl"],
        "installing": ["e.whl"],
        "skipped": [{"wheel_name": "b.whl", "reason": "why"}],
        "removed": ["c.whl"],
        "failed": [{"wheel_name": "d.whl", "error": "how"}],
    }
    assert replace(report, failed=()).status == "ok"


def fail_often(times: int, every_seconds: float) -> list[float]:
    """The pauses after each of so many failures of one upload."""
    trouble: WheelTrouble | None = None
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
    last = WheelTrouble(nuid="n1", hurdle=Hurdle.INSTALLING, error="why", times=6, again_at=0.0)
    assert trouble_again(last, "n2", Hurdle.INSTALLING, "why", 100.0, 10.0).again_at == 110.0


_LISTS = ("installed", "skipped", "removed", "failed")
_WORDS = st.text(max_size=3000) | st.integers(1, 3000).map(lambda n: "\U0001f40d" * n) | st.just("\x00" * 3000)


def bytes_of(report: SyncReport) -> int:
    """As the largest way of writing it has it."""
    return len(json.dumps(report.document(), indent=1))


@given(
    st.lists(_WORDS, max_size=80).map(tuple),
    st.lists(st.builds(Skipped, _WORDS, _WORDS), max_size=80).map(tuple),
    st.lists(st.builds(FailedWheel, _WORDS, _WORDS), max_size=80).map(tuple),
)
def test_what_is_told_of_wheels_is_bounded_whatever_it_says(
    names: tuple[str, ...], skipped: tuple[Skipped, ...], failed: tuple[FailedWheel, ...]
) -> None:
    """FLOW-243: it is part of the worker's record; and nothing is left out without being counted"""
    report = SyncReport(last_sync_at=5.0, installed=names, skipped=skipped, removed=names, failed=failed)
    document = report.document()
    assert bytes_of(report) < 32 * 1024
    for name in _LISTS:
        told, whole = document[name], getattr(report, name)
        assert len(told) + document.get(f"{name}_more", 0) == len(whole)
        assert document.get(f"{name}_more") != 0
        assert bool(told) == bool(whole)


def test_thousands_of_wheels_are_told_by_their_number() -> None:
    """FLOW-243"""
    names = tuple(f"acme_vision_models_{n}-1.0-cp311-cp311-macosx_11_0_arm64.whl" for n in range(8500))
    report = SyncReport(
        last_sync_at=5.0,
        installed=names,
        skipped=tuple(Skipped(name, "it does not fit this worker's Python, ABI or platform") for name in names),
        removed=names,
        failed=tuple(FailedWheel(name, "needs more. " * 80) for name in names),
    )
    document = report.document()
    assert bytes_of(report) < 32 * 1024
    assert (len(document["installed"]), document["installed_more"]) == (50, 8450)
    assert document["installed"][0] == names[0]
    assert document["failed"][0]["error"].endswith("…")
    small = replace(report, installed=names[:50], skipped=(), removed=(), failed=()).document()
    assert not [name for name in small if name.endswith("_more")]


def test_a_wheel_that_was_refused_is_read_as_it_was_written() -> None:
    """FLOW-242"""
    trouble = read_trouble({"nuid": "n1", "error": "why", "times": 3, "more": 1})
    assert trouble == WheelTrouble(nuid="n1", hurdle=Hurdle.HOSTS, error="why", times=3, again_at=0.0)
    wrongs: list[object] = [None, [], {}, {"nuid": 1, "error": "", "times": 1}, {"nuid": "", "error": "", "times": "1"}]
    for wrong in wrongs:
        assert read_trouble(wrong) is None
