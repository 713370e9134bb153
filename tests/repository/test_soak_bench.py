"""The soak among the benchmarks, in its smallest form: it runs to its end, and nothing leaks within some seconds."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from bench.soak import _told
from bench.soak_load import Told, Whole
from bench.soak_rate import RatePlan, _faults, _Found, _judged
from bench.soak_site import MIB, Held, Sample, Streams, Verdict

from support.waiting import eventually

ROOT = Path(__file__).parents[2]
TINY = ["--together", "--runs", "200", "--jobs", "20", "--short-runs", "0", "--short-jobs", "0", "--rounds", "2"]
TINY += ["--drain-seconds", "10", "--watchers", "20", "--slow-watchers", "3", "--watch-seconds", "0.3"]
TINY += ["--rate", "30", "--minutes", "0.03", "--samples", "2", "--kinds", "flow=8,program=1,pack=1"]


@pytest.fixture
def soaking(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Its folders are below `tmp_path`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench", "soak", *TINY],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []:
        child.kill()
    process.kill()
    process.communicate()


@pytest.mark.timeout(600)
def test_the_smallest_soak_finds_that_handles_and_consumers_do_not_grow(
    soaking: subprocess.Popen[str], tmp_path: Path
) -> None:
    """Every table is there, and nothing is left behind."""
    told, _ = soaking.communicate(timeout=500)
    assert soaking.returncode == 0, told
    assert "verdict: flat" in told
    rows = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in told.splitlines() if line.startswith("|")}
    wanted = {"200 flows", "`GET /exec/state`", "programs", "packs, submit to end", "gateway", "NATS", "index, on disk"}
    assert wanted <= set(rows)
    counts = re.findall(r"(\d+) consumers and", told)
    assert len(counts) == 2
    assert counts[0] == counts[1]
    assert not list(tmp_path.iterdir())


@pytest.mark.timeout(600)
async def test_a_soak_that_is_stopped_tells_what_it_has_and_leaves_nothing(
    soaking: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert soaking.stdout is not None
    for line in soaking.stdout:
        if "looked, empty" in line:
            break
    family = psutil.Process(soaking.pid).children(recursive=True)
    soaking.send_signal(signal.SIGINT)
    told, _ = soaking.communicate(timeout=200)
    assert soaking.returncode == 1
    assert "| `GET /exec/state` |" in told
    await eventually(lambda: not psutil.wait_procs(family, timeout=0)[1])
    assert not list(tmp_path.iterdir())


def _sample(rss: float = 100.0, handles: int = 30, consumers: int = 25) -> Sample:
    return Sample({"gateway": Held(round(rss * MIB), handles, 8, 0.0)}, Streams({}, 0, consumers), 0)


def _found(*samples: Sample, at_rest: Sample) -> _Found:
    found = _Found(RatePlan(200.0, 10.0, {"flow": 1.0}, len(samples)), [_sample(), *samples], at_rest)
    found.lines = [Told(12_000, 12_000, 12_000, {}, {}, 60.0) for _ in samples]
    found.whole = Whole(120_000, 120_000, 120_000, {}, {}, 600.0, {}, {"COMPLETED": 120_000}, 0)
    return found


def test_a_soak_in_which_nothing_grows_has_no_faults() -> None:
    assert (
        _faults(_found(*(_sample(100 + number % 2, 30 + 60 * (number % 2)) for number in range(10)), at_rest=_sample()))
        == []
    )


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (
            _found(*(_sample(100 + 2 * number) for number in range(10)), at_rest=_sample()),
            "memory of gateway grows by 2.0 MiB",
        ),
        (_found(*[_sample()] * 10, at_rest=_sample(handles=90)), "file handles of gateway grew from 30 to 90"),
        (_found(*[_sample()] * 10, at_rest=_sample(consumers=26)), "consumers grew from 25 to 26"),
    ],
)
def test_what_grows_is_told(found: _Found, fault: str) -> None:
    assert [each for each in _faults(found) if each.startswith(fault)], _faults(found)


def test_a_run_that_was_not_seen_to_end_is_told() -> None:
    found = _found(*[_sample()] * 10, at_rest=_sample())
    assert found.whole is not None
    found.whole.open, found.whole.refused, found.whole.ends = 3, {"503": 1}, {"COMPLETED": 5, "FAILED": 2}
    told = "; ".join(_faults(found))
    assert "refused: {'503': 1}, never seen to end: 3" in told
    assert "{'FAILED': 2}" in told


def test_a_submission_that_nobody_answered_is_told() -> None:
    found = _found(*[_sample()] * 10, at_rest=_sample())
    assert found.whole is not None
    found.whole.sent += 2
    assert _faults(found) == ["neither accepted nor refused: 2 of 120002"]


def test_a_verdict_is_on_what_was_judged_only() -> None:
    long, short = (_found(*[_sample()] * count, at_rest=_sample()) for count in (10, 2))
    assert "memory" in _judged(long)
    assert "memory" not in _judged(short)
    none, one = Verdict([], []), Verdict(["file handles"], [])
    assert _told({"queue": none, "rate": one}) == "flat, as far as was judged (rate: file handles)"
    assert _told({"queue": none}) == "none: too little for one"
    assert _told({"queue": Verdict([], ["slow"]), "rate": one}) == "queue: slow"
