"""`python -m bench.peers`: ours beside the tools that a user would pick instead, in interleaved rounds.

Each peer is installed into an environment of its own below `.bench/peers` at first. One that cannot be measured gets a
line that says why, and the others go on. About twelve minutes on two processors.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.peers import ours
from bench.peers.figures import FIGURES, OURS, Findings, page_of, reasons_of, rows_of
from bench.peers.peers import PEERS
from bench.peers.processes import Failed
from bench.peers.servers import Servers
from bench.peers.sizes import FULL, QUICK, Sizes
from bench.peers.theirs import Theirs
from bench.report import heading, table

#: By the name of the method and what it is given; and the figures that come of it.
MEASURES: tuple[tuple[str, tuple[Any, ...], tuple[str, ...]], ...] = (
    ("http", (), ("http 1", "http 32")),
    ("call", (), ("call 1", "call 32")),
    ("drain", (1,), ("noop 1", "chain 1")),
    ("drain", (2,), ("noop 2", "chain 2")),
    ("wait", (), ("p50", "p95", "p99")),
)

#: The figures that stand in one table.
_PAGES = (
    ("http 1", "http 32", "call 1", "call 32"),
    ("noop 1", "noop 2", "chain 1", "chain 2"),
    ("p50", "p95", "p99"),
)

_KEEPS = (
    OURS,
    "JetStream, synced each second; acknowledged once the end is stored; taken over when a worker falls",
    "every state with its time, worker, attempts, params, each task's state, times, inputs, output, error; searchable",
)


def chosen_peers(text: str) -> list[str]:
    """Names of peers from `celery,arq`; all of them for an empty text."""
    known = [peer.name for peer in PEERS]
    asked = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in asked if name not in known]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; choose from {', '.join(known)}")
    return asked or known


def read_arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description="Ours beside its peers.")
    parser.add_argument("--peers", type=chosen_peers, default=chosen_peers(""), metavar="A,B", help="only these")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured (default: 3)")
    parser.add_argument("--quick", action="store_true", help="one short round: does all of it work?")
    parser.add_argument("--only", default="", metavar="NAME", help="only http, call, drain or wait")
    return parser.parse_args(words)


def main() -> None:
    asked = read_arguments(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that whatever was started is ended
    sizes, rounds = (QUICK, 1) if asked.quick else (FULL, asked.rounds)
    python = f"{platform.python_implementation()} {platform.python_version()}"
    print(f"{python}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {rounds} rounds", flush=True)
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="pyoco-bench-peers-"))
    findings = Findings()
    try:
        with contextlib.ExitStack() as ends:
            contenders = _contenders(asked.peers, sizes, Servers(ends, folder), folder, findings)
            for number in range(rounds):
                for method, arguments, names in MEASURES:
                    if asked.only in ("", method):
                        _measure(
                            _of_round(contenders, number), method, arguments, names, findings, f"{number + 1}/{rounds}"
                        )
    except KeyboardInterrupt:
        print("stopped; this is what there is so far")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _show(findings, [OURS, ours.THREADS, ours.LIBRARY, *asked.peers])
    print(f"\n{time.monotonic() - began:,.0f} s, load {os.getloadavg()[0]:.1f}")


def _of_round(contenders: Sequence[Any], number: int) -> list[Any]:
    return [each for each in contenders if not isinstance(each, Theirs) or number < each.rounds_max]


def _contenders(names: Sequence[str], sizes: Sizes, servers: Servers, folder: Path, findings: Findings) -> list[Any]:
    found: list[Any] = [ours.Ours(sizes), ours.Threads(sizes), ours.Library(sizes)]
    for peer in PEERS:
        if peer.name in names:
            try:
                found.append(Theirs(peer, servers, sizes, folder))
            except (Failed, subprocess.TimeoutExpired) as error:
                findings.fail(peer.name, [figure.name for figure in FIGURES], str(error))
    return found


def _measure(
    contenders: Sequence[Any],
    method: str,
    arguments: Sequence[Any],
    names: Sequence[str],
    findings: Findings,
    where: str,
) -> None:
    """One measure of everybody, one after the other, so that a slow moment hits all of them."""
    for each in contenders:
        measure: Callable[..., dict[str, float]] | None = getattr(each, method, None)
        if measure is None or any((name, each.name) in findings.failures for name in names):
            continue
        began = time.monotonic()
        try:
            found = measure(*arguments)
        except Exception as error:  # noqa: BLE001 - the top of one measurement: whatever it is, the others go on
            findings.fail(each.name, names, f"{type(error).__name__}: {error}")
            told = f"failed: {error}"
        else:
            findings.add(each.name, found)
            told = ", ".join(f"{name}: {value:,.1f}" for name, value in found.items())
        print(f"   {where} {time.monotonic() - began:5.1f} s  {each.name}: {told}", flush=True)


def _show(findings: Findings, contenders: Sequence[str]) -> None:
    heading("beside the peers: the median of the rounds, and how many times better ours is")
    for figure in FIGURES:
        rows = rows_of(figure, findings, contenders)
        if len(rows) > 1:
            print()
            table(rows)
            for reason in reasons_of(figure, findings, contenders):
                print(f"   {reason}")
    heading("the same as Markdown; in brackets how many times better ours is")
    for names in _PAGES:
        if lines := page_of(names, findings, contenders):
            print("\n" + "\n".join(lines))
    heading("what each of them promises and keeps, as it was configured here")
    for name, durability, keeps in (_KEEPS, *((peer.name, peer.durability, peer.keeps) for peer in PEERS)):
        if name in contenders:
            print(f"{name}\n   {durability}\n   keeps {keeps}")


if __name__ == "__main__":
    main()
