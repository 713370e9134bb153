"""The `eval` pack: evaluates one metric over many cases and counts how many pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyoco_server.config.packs import PackConfig
from pyoco_server.core.judging.cases import METRICS, score_text
from pyoco_server.core.priced.envelope import PackResult
from pyoco_server.executors.packs.port import Context, Execute, stopped_by_budget

__all__ = ["executor"]


def executor(config: PackConfig) -> Execute:
    """O(n) in the size of the inputs; the same inputs give the same score. The price is the sum over its cases
    (PRICED-127).

    A gateway rejects a reservation that does not cover every case. If the gateway's prices are lower than this
    worker's, only the cases that the reservation covers are evaluated (SAFE-2).
    """
    tariff = config.prices.eval

    def execute(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
        passes, asked = METRICS[inputs["metric"]], inputs["cases"]
        cases = asked[: tariff.covered(ctx.reserved_usd_micros, len(asked))]
        results = [{"id": case["id"], "passed": passes(case["expected"], case["actual"])} for case in cases]
        passed = sum(result["passed"] for result in results)
        return PackResult(
            data={
                "total": len(cases),
                "passed": passed,
                "score": score_text(passed, len(cases)),
                "results": results,
                **stopped_by_budget(len(cases), len(asked)),
            },
            actual_cost_usd_micros=tariff.of(len(cases)),
        )

    return execute
