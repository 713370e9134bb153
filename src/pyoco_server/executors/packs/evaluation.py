"""The `eval` pack: one metric over many cases, and how many of them pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyoco_server.core.judging.cases import METRICS, score_text
from pyoco_server.core.priced.envelope import PackResult
from pyoco_server.executors.packs.port import Context, Execute
from pyoco_server.pack_config import PackConfig

__all__ = ["executor"]


def executor(config: PackConfig) -> Execute:
    """O(n) in what was sent; the same inputs give the same score. The price is that of its cases (PRICED-127)."""

    def execute(inputs: Mapping[str, Any], _: Context) -> PackResult:
        passes, cases = METRICS[inputs["metric"]], inputs["cases"]
        results = [{"id": case["id"], "passed": passes(case["expected"], case["actual"])} for case in cases]
        passed = sum(result["passed"] for result in results)
        return PackResult(
            data={
                "total": len(cases),
                "passed": passed,
                "score": score_text(passed, len(cases)),
                "results": results,
            },
            actual_cost_usd_micros=config.price_eval_base_usd_micros + config.price_eval_case_usd_micros * len(cases),
        )

    return execute
