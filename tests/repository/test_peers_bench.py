"""The parts of `bench.peers` that need no server: statistics, tables, arguments, and the files of its set-up."""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from pathlib import Path

import pytest
from bench.peers.__main__ import MEASURES, chosen_peers, read_arguments
from bench.peers.environments import REQUIREMENTS, is_current
from bench.peers.figures import FIGURES, OURS, Figure, Findings, page_of, reasons_of, rows_of
from bench.peers.peers import PEERS, Peer
from bench.peers.processes import Failed, driver, last_line
from bench.peers.sizes import FULL, QUICK, latencies_ms

RATE = Figure("rate", "so many", "many", "per second")
TIME = Figure("time", "so long", "long", "ms", more_is_better=False)


def findings(figure: Figure, **values: list[float]) -> Findings:
    found = Findings()
    for name, each in values.items():
        for value in each:
            found.add(OURS if name == "ours" else name, {figure.name: value})
    return found


def test_a_ratio_above_one_says_that_ours_is_ahead_whatever_the_unit() -> None:
    rates = findings(RATE, ours=[100, 300, 200], arq=[100, 90, 110])
    times = findings(TIME, ours=[2.0], arq=[5.0])
    assert rates.ratio(RATE, "arq") == pytest.approx(2.0)
    assert times.ratio(TIME, "arq") == pytest.approx(2.5)
    assert rates.ratio(RATE, "celery") is None


def test_a_row_shows_the_median_its_spread_and_the_ratio_and_ours_comes_first() -> None:
    found = findings(RATE, ours=[1000, 3000, 2000], slow=[50, 40, 60], quick=[4000])
    assert rows_of(RATE, found, [OURS, "slow", "quick"]) == [
        ("so many", "per second", "spread", "ours is"),
        (OURS, "2,000", "1,000 to 3,000", ""),
        ("quick", "4,000", "4,000 to 4,000", "0.50 x"),
        ("slow", "50.0", "40.0 to 60.0", "40.00 x"),
    ]


def test_one_that_failed_has_a_row_and_its_reason_is_told_on_one_line() -> None:
    found = findings(TIME, ours=[3.0])
    found.fail("rq", ["time"], "no answer\n  within 5 s")
    assert rows_of(TIME, found, [OURS, "rq"])[-1] == ("rq", "failed", "", "")
    assert reasons_of(TIME, found, [OURS, "rq"]) == ["rq: no answer within 5 s"]


def test_the_page_has_a_row_for_each_contender_with_how_many_times_better_ours_is() -> None:
    found = Findings()
    found.add(OURS, {"p50": 2.0, "p95": 4.0})
    found.add("arq", {"p50": 5.0})
    found.fail("rq", ["p50", "p95"], "why not")
    assert page_of(("p50", "p95", "p99"), found, [OURS, "arq", "rq", "celery"]) == [
        "| | p50, ms | p95, ms |",
        "|---|---|---|",
        f"| **{OURS}** | **2.0** | **4.0** |",
        "| arq | 5.0 (2.50) |  |",
        "| rq | failed | failed |",
    ]
    assert page_of(("http 1",), found, [OURS]) == []


def test_percentiles_are_told_in_milliseconds() -> None:
    assert latencies_ms([n / 1000 for n in range(1, 101)]) == pytest.approx({"p50": 51.0, "p95": 96.0, "p99": 100.0})


def test_a_quick_round_is_smaller_and_never_empty() -> None:
    assert QUICK.seconds < FULL.seconds
    assert FULL.count(2000) == 2000
    assert QUICK.count(2000) < 2000
    assert QUICK.count(1) > 0


def test_peers_are_chosen_by_name_and_an_unknown_one_is_refused() -> None:
    assert chosen_peers("arq, celery") == ["arq", "celery"]
    assert read_arguments([]).peers == [peer.name for peer in PEERS]
    assert read_arguments(["--rounds", "5", "--quick"]).rounds == 5
    with pytest.raises(argparse.ArgumentTypeError, match="unknown: sidekiq"):
        chosen_peers("arq,sidekiq")


def test_every_figure_comes_of_exactly_one_measure() -> None:
    told = [name for _, _, names in MEASURES for name in names]
    assert sorted(told) == sorted(figure.name for figure in FIGURES)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
class TestOfEachPeer:
    def test_its_requirements_are_pinned_and_hashed_and_name_no_registry(self, peer: Peer) -> None:
        text = (REQUIREMENTS / f"{peer.name}.txt").read_text()
        wanted = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
        assert wanted
        assert all(re.match(r"[a-z0-9._-]+(\[[a-z0-9,._-]+\])?==\S+ ", line) for line in wanted)
        assert text.count("--hash=sha256:") >= len(wanted)
        assert "://" not in text
        for line in (REQUIREMENTS / f"{peer.name}.in").read_text().splitlines():
            package = re.split(r"[\[<=>]", line)[0]
            assert any(each.startswith((f"{package}==", f"{package}[")) for each in wanted), package

    def test_its_program_is_there_and_so_is_what_its_workers_load(self, peer: Peer) -> None:
        workers, found = peer.workers(2), importlib.util.find_spec(peer.module)
        assert found is not None
        assert found.origin is not None
        compile(Path(found.origin).read_text(), found.origin, "exec")
        assert len(workers) in (1, 2)
        assert all("{" not in word for command in workers for word in command)
        assert peer.durability
        assert peer.keeps


def test_a_peer_without_an_environment_is_not_taken_for_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.peers.environments.HOME", tmp_path)
    assert not is_current("arq")
    (tmp_path / "arq").mkdir()
    (tmp_path / "arq" / "installed").write_text("an earlier lock")
    assert not is_current("arq")


def test_a_program_that_falls_is_told_of_by_its_last_line(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    code = "import sys; print('{\"a\": 1}', flush=True); sys.stdin.readline(); raise OSError('no such queue')"
    with driver([sys.executable, "-c", code], {}, log) as asked:
        assert asked.answer(100) == {"a": 1}
        asked.go_on()
        with pytest.raises(Failed, match="OSError: no such queue"):
            asked.answer(100)
    assert last_line(log) == "OSError: no such queue"


def test_a_program_that_says_nothing_is_given_up_and_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with driver(command, {}, tmp_path / "log.txt") as asked, pytest.raises(Failed, match="no answer within"):
        asked.answer(0.2)
    assert asked.process.returncode is not None
