"""The shares of the test processes."""

from __future__ import annotations

from typing import Any

import pytest

from support.order import shared_out

_FILES = ("browser/test_a", "core/test_b", "core/test_c", "doors/test_d", "system/test_e", "system/test_f")


class _Item:
    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid


_SEEDS = "tests/simulation/test_seeds.py::test_seed"


def _items() -> list[Any]:
    return [_Item(f"tests/{file}.py::test_{number}") for file in _FILES for number in range(30)]


@pytest.mark.parametrize("processes", [1, 2, 3, 8])
def test_every_test_is_in_one_share(processes: int) -> None:
    items = _items()
    assert sorted(map(id, shared_out(items, processes))) == sorted(map(id, items))


def test_files_that_are_not_quick_stay_whole() -> None:
    names = [item.nodeid.split("::")[0] for item in shared_out(_items(), 3)]
    for file in (file for file in _FILES if not file.startswith("core/")):
        name = f"tests/{file}.py"
        at = names.index(name)
        assert names[at : at + 30] == [name] * 30


def test_each_share_begins_with_a_slow_file_and_ends_with_quick_ones() -> None:
    shared = [item.nodeid.split("::")[0] for item in shared_out(_items(), 3)]
    assert [shared[at] for at in (0, 60, 120)] == [f"tests/{each}.py" for each in ("browser/test_a", *_FILES[4:])]
    assert all(shared[at].startswith("tests/core/") for at in (119, 179))


def test_simulations_are_the_last_tests_of_each_share() -> None:
    """They leave a large heap behind."""
    items = [*_items(), *(_Item(f"{_SEEDS}[{number}]") for number in range(6))]
    shared = shared_out(items, 3)
    assert len(shared) == len(items) == 186
    assert [item.nodeid.startswith(_SEEDS) for item in shared] == ([False] * 60 + [True] * 2) * 3
