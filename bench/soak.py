"""`python -m bench soak`: a long queue, many watchers, and a steady rate for minutes. Some 13 minutes as it stands.

Each part has a deployment of its own, and prints the rows of its tables at its end; Ctrl-C prints those that there are.
The exit code is 1 when something grew that must not, or a run was lost.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Mapping, Sequence

from bench.soak_queue import QueuePlan, wait_long
from bench.soak_rate import RatePlan, hold_rate
from bench.soak_site import SoakSite, Verdict, a_soak_site
from bench.soak_watch import WatchPlan, watch_many

__all__ = ["main"]

_PARTS = ("queue", "watchers", "rate")


def _shares(text: str) -> dict[str, float]:
    """`flow=9,program=1`: how often each comes. Raises ArgumentTypeError."""
    weights = {kind: float(weight or 1) for kind, _, weight in (part.partition("=") for part in text.split(","))}
    if set(weights) - {"flow", "program", "pack"} or sum(weights.values()) <= 0:
        raise argparse.ArgumentTypeError("kinds are flow, program and pack")
    return {kind: weight / sum(weights.values()) for kind, weight in weights.items()}


def _read(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench soak", description=__doc__)
    add = parser.add_argument
    add("--parts", default=",".join(_PARTS), help="what to measure, of: %(default)s")
    add("--together", action="store_true", help="on one deployment, one after another: quicker, and less clear")
    add("--runs", type=int, default=100_000, help="flows in the long queue [%(default)s]")
    add("--jobs", type=int, default=10_000, help="jobs of programs in theirs [%(default)s]")
    add("--short-runs", type=int, default=5_000, help="flows in a queue to compare with; 0: none [%(default)s]")
    add("--short-jobs", type=int, default=1_500, help="jobs, in the same way [%(default)s]")
    add("--drain-seconds", type=float, default=20.0, help="how long a queue is watched [%(default)s]")
    add("--rounds", type=int, default=60, help="looks of each kind [%(default)s]")
    add("--watchers", type=int, default=1_000, help="[%(default)s]")
    add("--slow-watchers", type=int, default=100, help="beside them, and they read nothing [%(default)s]")
    add("--watch-seconds", type=float, default=10.0, help="for each of four stages [%(default)s]")
    add("--minutes", type=float, default=10.0, help="how long the rate is held [%(default)s]")
    add("--rate", type=float, default=200.0, help="runs per second, by the clock [%(default)s]")
    add("--kinds", type=_shares, default="flow=90,program=8,pack=2", help="what they are [%(default)s]")
    add("--samples", type=int, default=10, help="looks at the processes meanwhile [%(default)s]")
    chosen = parser.parse_args(arguments)
    if set(chosen.parts.split(",")) - set(_PARTS):
        parser.error(f"--parts: choose from {', '.join(_PARTS)}")
    return chosen


def main(arguments: Sequence[str]) -> None:
    chosen = _read(arguments)
    queue = QueuePlan(
        chosen.runs, chosen.jobs, chosen.drain_seconds, chosen.rounds, chosen.short_runs, chosen.short_jobs
    )
    watch = WatchPlan(chosen.watchers, chosen.slow_watchers, chosen.rate / 2, chosen.watch_seconds)
    rate = RatePlan(chosen.rate, chosen.minutes, chosen.kinds, chosen.samples)
    parts: dict[str, Callable[[SoakSite], Verdict]] = {
        "queue": lambda site: wait_long(site, queue),
        "watchers": lambda site: watch_many(site, watch),
        "rate": lambda site: hold_rate(site, rate),
    }
    wanted = chosen.parts.split(",")
    verdicts: dict[str, Verdict] = {}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts it in the background has it ignored
    try:
        for together in [wanted] if chosen.together else [[name] for name in wanted]:
            with a_soak_site() as site:
                for name in together:
                    verdicts[name] = parts[name](site)
    except KeyboardInterrupt:
        sys.exit("stopped")
    print("\nverdict: " + _told(verdicts))
    sys.exit(1 if any(each.faults for each in verdicts.values()) else 0)


def _told(verdicts: Mapping[str, Verdict]) -> str:
    """The faults; without any, what was judged. A part that was too small for that says nothing of itself."""
    faults = [f"{name}: {fault}" for name, each in verdicts.items() for fault in each.faults]
    judged = [f"{name}: {', '.join(each.judged)}" for name, each in verdicts.items() if each.judged]
    if faults:
        return "; ".join(faults)
    return f"flat, as far as was judged ({'; '.join(judged)})" if judged else "none: too little for one"
