"""Which of many runs have ended, without a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from pyoco_server import RunHandle, RunTimeout, as_completed
from pyoco_server.app.endings import Endings


@dataclass
class Known:
    id: str
    flow_name: str | None = "measure"


def state(handle: Known, status: str = "COMPLETED") -> dict[str, Any]:
    return {"run_id": handle.id, "status": status}


def test_every_run_is_read_in_turn_and_reported_once() -> None:
    """APP-6"""
    handles = [Known(str(number)) for number in range(50)]
    endings = Endings(handles, None, lambda: 0.0)
    rounds = [[handle.id for handle in endings.to_read()] for _ in range(3)]
    assert {each for some in rounds for each in some} == {handle.id for handle in handles}
    assert endings.to_list() == {"flow": "measure", "limit": 200}
    assert endings.ended([state(handles[7]), state(handles[8], "RUNNING"), state(Known("another"))]) == [handles[7]]
    assert endings.ended([state(handles[7])]) == []
    assert len(endings.ended([state(handle, "FAILED") for handle in handles])) == 49
    assert endings.is_over


def test_runs_of_several_flows_are_listed_without_a_filter_and_few_not_at_all() -> None:
    """APP-6"""
    mixed = Endings([Known(str(number), str(number % 2)) for number in range(30)], None, lambda: 0.0)
    assert mixed.to_list() == {"flow": None, "limit": 200}
    assert Endings([Known("1")], None, lambda: 0.0).to_list() is None


def test_pauses_grow_until_there_is_news_or_the_time_is_up() -> None:
    """APP-6"""
    now = 0.0
    handles = [Known("a"), Known("b")]
    endings = Endings(handles, 10.0, lambda: now)
    pauses = [endings.pause() for _ in range(12)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 0.5
    endings.ended([state(handles[0])])
    assert endings.pause() == pauses[0]
    now = 9.995
    assert endings.pause() == pytest.approx(0.005)
    now = 10.0
    with pytest.raises(RunTimeout, match="1 runs have not ended after 10 s"):
        endings.pause()


class Listed(RunHandle[int]):
    """A handle of a run that has ended, as the list shows: reading it alone shows nothing new."""

    pages = 0

    def __init__(self, run_id: str) -> None:
        super().__init__(None, run_id, None, "measure")  # type: ignore[arg-type]

    def snapshot(self) -> dict[str, Any]:
        return {"run_id": self.id, "status": "RUNNING"}

    def list_page(self, filters: Any) -> tuple[list[dict[str, Any]], str | None]:
        Listed.pages += 1
        first = int(filters["cursor"] or 0)
        ids = range(first, min(first + 10, 30))
        return [{"run_id": str(each), "status": "COMPLETED"} for each in ids], str(first + 10)


def test_pages_of_the_list_are_read_while_they_have_news() -> None:
    """APP-6: 30 of 30 runs have ended, of which the last 20 are too few to be listed."""
    found = as_completed([Listed(str(number)) for number in range(30)], timeout=0)
    assert [next(found).id for _ in range(10)] == [str(number) for number in range(10)]
    with pytest.raises(RunTimeout):
        next(found)
    assert Listed.pages == 1
