"""Runs at a steady rate for minutes: latencies, and what each process holds at the end of each minute."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.report import heading, markdown
from bench.soak_load import ByClock, Told, Whole
from bench.soak_site import MIB, Sample, SoakSite, Verdict, loading

__all__ = ["RatePlan", "hold_rate"]

#: After so many runs the caches are full: gateway and keeper keep 8 MiB of their index in memory.
_WARM_RUNS = 15_000
#: With fewer samples after that, memory is not judged.
_JUDGED_SAMPLES_MIN = 4
#: Beyond the noise of an allocator: a process that grows by more than this, and by more than this share of itself, each
#: minute is not flat.
_FLAT_BYTES_PER_MINUTE, _FLAT_SHARE_PER_MINUTE = MIB // 2, 0.01
#: A few handles come and go: connections of whoever asks, files of an index that is written.
_HANDLES_SPARE = 4


@dataclass(frozen=True)
class RatePlan:
    rate: float
    minutes: float
    kinds: dict[str, float]
    #: Lines of the table.
    samples: int

    @property
    def every_seconds(self) -> float:
        return self.minutes * 60 / self.samples

    @property
    def first(self) -> str:
        """The kind that is named first."""
        return next(iter(self.kinds))


@dataclass
class _Found:
    plan: RatePlan
    #: The first sample is that of the beginning; the others are taken under the load.
    samples: list[Sample] = field(default_factory=list)
    #: After the last run has ended.
    at_rest: Sample | None = None
    lines: list[Told] = field(default_factory=list)
    whole: Whole | None = None


def hold_rate(site: SoakSite, plan: RatePlan) -> Verdict:
    """Prints what there is, even when it is cut short."""
    kinds = ", ".join(f"{share:.0%} {kind}s" for kind, share in plan.kinds.items())
    heading(f"{plan.rate:g} runs/s for {plan.minutes:g} minutes by the clock, one gateway, one worker: {kinds}")
    found = _Found(plan)
    site.start_worker()
    try:
        _warm(site, plan)
        _watch_it(site, found)
    finally:
        _print(found)
    return Verdict(_judged(found), _faults(found))


def _warm(site: SoakSite, plan: RatePlan) -> None:
    """A few runs of each kind, all of which end: the worker is there, its hosts and consumers as well."""
    with loading(site, ByClock(20, 1, dict.fromkeys(plan.kinds, 1 / len(plan.kinds)), 1, site.keys)) as lines:
        *_, whole = lines
    assert isinstance(whole, Whole)
    assert (whole.accepted, whole.open, whole.refused) == (whole.sent, 0, {}), whole


def _watch_it(site: SoakSite, found: _Found) -> None:
    plan = found.plan
    found.samples.append(site.sample())
    began = ByClock(plan.rate, plan.minutes * 60, plan.kinds, plan.every_seconds, site.keys)
    with loading(site, began) as lines:
        for line in lines:
            if isinstance(line, Whole):
                found.whole = line
                found.at_rest = site.sample()
                return
            found.lines.append(line)
            found.samples.append(site.sample())
            held = ", ".join(f"{name} {each.rss / MIB:.0f}" for name, each in found.samples[-1].held.items())
            p99s = f"p99 of {plan.first}s: submit {_p99(line.submit_ms, plan)} ms, end {_p99(line.end_ms, plan)} ms"
            told = f"{line.accepted:,} accepted, {line.ended:,} ended, {p99s}; MiB: {held}"
            print(f"  {len(found.lines)}/{plan.samples}: {told}", flush=True)


def _p99(by_kind: Mapping[str, Sequence[float]], plan: RatePlan) -> str:
    """Of the first kind: others take longer by nature."""
    return _part(by_kind.get(plan.first, ()), 2)


def _part(values: Sequence[float], index: int) -> str:
    return f"{values[index]:.1f}" if values else "-"


def _print(found: _Found) -> None:
    if not found.lines:
        print("nothing was measured")
        return
    print()
    _print_latencies(found)
    print()
    _print_minutes(found)
    print()
    _print_held(found)


def _print_latencies(found: _Found) -> None:
    head = ("ms", "p50", "p95", "p99", "max")
    whole = found.whole or found.lines[-1]
    rows: list[tuple[str, ...]] = [head]
    for name, by_kind in (("submit", whole.submit_ms), ("submit to end", whole.end_ms)):
        rows += [
            (f"{kind}s, {name}", *(_part(values, index) for index in range(4))) for kind, values in by_kind.items()
        ]
    markdown(rows)
    if found.whole is not None:
        refused = f"{sum(found.whole.refused.values()):,} refused {found.whole.refused or ''}".rstrip()
        ends = ", ".join(f"{count:,} {state}" for state, count in sorted(found.whole.ends.items()))
        print(f"\n{found.whole.sent:,} sent, {refused}, {ends}, {found.whole.open} open")


def _print_minutes(found: _Found) -> None:
    """How it went on: whether the last minute is as the first."""
    plan = found.plan
    rows: list[tuple[str, ...]] = [
        (
            f"{plan.first}s, p99 in ms",
            *(f"{number * plan.minutes / plan.samples:.3g} min" for number in _from_one(found)),
        )
    ]
    rows.append(("submit", *(_p99(line.submit_ms, plan) for line in found.lines)))
    rows.append(("submit to end", *(_p99(line.end_ms, plan) for line in found.lines)))
    markdown(rows)


def _from_one(found: _Found) -> range:
    return range(1, len(found.lines) + 1)


def _warmed(found: _Found) -> list[Sample]:
    """Those after the warm-up; when it has not come to its end, all of them."""
    accepted = itertools.accumulate(line.accepted for line in found.lines)
    later = [sample for sample, runs in zip(found.samples[1:], accepted, strict=True) if runs >= _WARM_RUNS]
    return later if len(later) >= _JUDGED_SAMPLES_MIN else found.samples


def _slope(values: Sequence[float]) -> float:
    """By how much it grows from sample to sample."""
    return statistics.linear_regression(range(len(values)), values).slope if len(values) > 1 else 0.0


def _print_held(found: _Found) -> None:
    """A row for each part, and what grows by the run: what is stored grows by what is stored."""
    samples, first, last = _warmed(found), found.samples[0], found.at_rest or found.samples[-1]
    wall = found.plan.every_seconds * (len(samples) - 1)
    when = "warmed up" if len(samples) < len(found.samples) else "beginning"
    rows: list[tuple[str, ...]] = [
        ("", "MiB, beginning", when, "end", "more per minute", "per run", "file handles", "threads", "CPU")
    ]
    for name in first.held:
        held = [sample.held[name] for sample in samples]
        sizes = [f"{each.rss / MIB:.0f}" for each in (first.held[name], held[0], held[-1])]
        used = (held[-1].cpu_seconds - held[0].cpu_seconds) / wall if wall else 0.0
        before, after = first.held[name], last.held[name]
        counts = [f"{before.handles} to {after.handles}", f"{before.threads} to {after.threads}"]
        rows.append((name, *sizes, *_growth(found, [each.rss for each in held]), *counts, f"{used:.0%}"))
    for name, stored in (
        ("streams, on disk", [sample.streams.size_bytes for sample in (first, *samples)]),
        ("index, on disk", [sample.index_bytes for sample in (first, *samples)]),
    ):
        sizes = [f"{size / MIB:.0f}" for size in (stored[0], stored[1], stored[-1])]
        rows.append((name, *sizes, *_growth(found, stored[1:]), "", "", ""))
    markdown(rows)
    streams = [f"{each.streams.consumers} consumers and {_messages(each):,} messages" for each in (first, last)]
    print("\nin the streams: {} at the beginning, {} at the end".format(*streams))


def _messages(sample: Sample) -> int:
    return sum(sample.streams.messages.values())


def _growth(found: _Found, sizes: Sequence[float]) -> tuple[str, str]:
    """From sample to sample: by the minute, and by the run."""
    slope, runs = _slope(sizes), statistics.fmean(line.ended for line in found.lines) or 1.0
    return f"{slope * found.plan.samples / found.plan.minutes / MIB:.1f}", f"{slope / runs:.0f} B"


def _judged(found: _Found) -> list[str]:
    """Memory only if there was enough of it to warm up."""
    if found.whole is None or found.at_rest is None:
        return []
    always = ["the end of every run", "file handles", "threads", "consumers"]
    return [*always, "memory"] if len(_warmed(found)) < len(found.samples) else always


def _faults(found: _Found) -> list[str]:
    """Memory of NATS is not judged: it keeps what is stored, and its own caches of that."""
    if found.whole is None or found.at_rest is None:
        return ["the load was not sent to its end"]
    faults = _leaks(found.samples[0], found.at_rest)
    samples, per_minute = _warmed(found), found.plan.samples / found.plan.minutes
    for name in samples[0].held if len(samples) < len(found.samples) else ():
        sizes = [sample.held[name].rss for sample in samples]
        slope = _slope(sizes) * per_minute
        if name != "NATS" and slope > max(_FLAT_BYTES_PER_MINUTE, _FLAT_SHARE_PER_MINUTE * sizes[0]):
            faults.append(f"memory of {name} grows by {slope / MIB:.1f} MiB a minute")
    if found.whole.refused or found.whole.open:
        faults.append(f"refused: {found.whole.refused}, never seen to end: {found.whole.open}")
    unanswered = found.whole.sent - found.whole.accepted - sum(found.whole.refused.values())
    if unanswered:
        faults.append(f"neither accepted nor refused: {unanswered} of {found.whole.sent}")
    odd = {state: count for state, count in found.whole.ends.items() if state != "COMPLETED"}
    return [*faults, f"ends other than COMPLETED: {odd}"] if odd else faults


def _leaks(before: Sample, after: Sample) -> list[str]:
    """What is held at rest: the same after any number of runs."""
    faults = []
    for name, held in before.held.items():
        now = after.held[name]
        if now.handles > held.handles + _HANDLES_SPARE:
            faults.append(f"file handles of {name} grew from {held.handles} to {now.handles}")
        # NATS is in Go: as many threads as were ever held up by the system at once.
        if name != "NATS" and now.threads > held.threads + _HANDLES_SPARE:
            faults.append(f"threads of {name} grew from {held.threads} to {now.threads}")
    if after.streams.consumers > before.streams.consumers:
        faults.append(f"consumers grew from {before.streams.consumers} to {after.streams.consumers}")
    return faults
