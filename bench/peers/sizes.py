"""How much is measured, and the one body that everybody is sent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from bench.report import percentiles

__all__ = ["BODY", "FULL", "QUICK", "Sizes", "latencies_ms"]

BODY = json.dumps({"flow_name": "noop", "params": {"name": "bench"}}).encode()


@dataclass(frozen=True)
class Sizes:
    #: For each figure of submits.
    seconds: float
    #: Of the counts of jobs.
    share: float

    def count(self, full: int) -> int:
        return max(6, int(full * self.share))


FULL = Sizes(seconds=1.0, share=1.0)
#: To see that all of it works; the figures say little.
QUICK = Sizes(seconds=0.5, share=0.2)


def latencies_ms(seconds: Sequence[float]) -> dict[str, float]:
    return {name: value * 1000 for name, value in zip(("p50", "p95", "p99"), percentiles(seconds), strict=True)}
