"""What a worker has run lately: what is kept, what goes, and in which order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.programs.dedup import ENTRIES_MAX, SWEEP_SECONDS, DedupCache, DedupStage


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_result_is_known_for_as_long_as_it_should_be() -> None:
    """GRID-107, GRID-108: from the result, not from its being settled"""
    clock = Clock()
    cache: DedupCache[str] = DedupCache(600.0, clock)
    cache.put("a", "running", DedupStage.RUNNING)
    clock.now += 10_000
    assert cache.get("a") == "running"
    cache.put("a", "result")
    clock.now += 300
    cache.settle("a")
    assert (cache.get("a"), cache.stage("a")) == ("result", DedupStage.SETTLED)
    clock.now += 299
    assert (cache.sweep(), "a" in cache) == (0, True)
    clock.now += 1
    assert "a" not in cache, "the same JobId would run again, swept or not"
    assert (cache.get("a"), cache.stage("a"), len(cache)) == (None, None, 1)
    assert (cache.sweep(), len(cache)) == (1, 0)
    assert (ENTRIES_MAX, SWEEP_SECONDS) == (10_000, 60.0)


def test_what_runs_or_is_not_settled_stays() -> None:
    """GRID-107"""
    clock = Clock()
    cache: DedupCache[int] = DedupCache(600.0, clock, entries_max=3)
    cache.put("runs", 1, DedupStage.RUNNING)
    cache.put("waits", 2, DedupStage.FINISHED)
    cache.put("old", 3, DedupStage.SETTLED)
    clock.now += 1
    cache.put("new", 4, DedupStage.SETTLED)
    assert list(cache) == ["runs", "waits", "new"], "the oldest finished one makes room"
    for name in ("x", "y"):
        cache.put(name, 5, DedupStage.RUNNING)
    assert list(cache) == ["runs", "waits", "x", "y"], "there is nothing left that could go"
    clock.now += 10**6
    assert cache.sweep() == 0
    cache.settle("runs")
    cache.settle("nobody")
    assert cache.stage("runs") == DedupStage.RUNNING


def test_what_may_run_again_is_not_known() -> None:
    """GRID-107: WORKER_ERROR, superseded"""
    cache: DedupCache[int] = DedupCache(600.0, Clock())
    cache.put("a", 1, DedupStage.SETTLED)
    cache.remove("a")
    cache.remove("a")
    assert ("a" in cache, cache.sweep()) == (False, 0)


def test_a_job_that_runs_once_more_is_not_swept_as_its_old_self() -> None:
    """GRID-107"""
    clock = Clock()
    cache: DedupCache[int] = DedupCache(600.0, clock, entries_max=1)
    cache.put("a", 1, DedupStage.SETTLED)
    cache.put("a", 2, DedupStage.RUNNING)
    clock.now += 10_000
    assert (cache.sweep(), cache.get("a")) == (0, 2)
    cache.put("b", 3, DedupStage.SETTLED)
    assert (list(cache), cache.get("a")) == (["a"], 2), "what is finished goes first, if it is the newest"


@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.sampled_from([*DedupStage, "settle", "remove", "sweep"]), st.integers(0, 400))
    )
)
def test_whatever_happens_nothing_unsettled_is_lost_and_nothing_piles_up(steps: list[tuple[int, object, int]]) -> None:
    """GRID-107"""
    clock = Clock()
    cache: DedupCache[int] = DedupCache(600.0, clock, entries_max=3)
    unsettled: set[str] = set()
    for number, what, wait in steps:
        name = str(number)
        clock.now += wait
        if isinstance(what, DedupStage):
            cache.put(name, number, what)
            (unsettled.discard if what is DedupStage.SETTLED else unsettled.add)(name)
        elif what == "settle":
            if cache.stage(name) is DedupStage.FINISHED:
                unsettled.discard(name)
            cache.settle(name)
        elif what == "remove":
            cache.remove(name)
            unsettled.discard(name)
        else:
            cache.sweep()
        assert all(each in cache for each in unsettled)
        assert len(cache) <= max(3, len(unsettled))
