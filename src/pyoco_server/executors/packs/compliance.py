"""The `compliance` pack: checks the text of a submission against its rules. A text that violates them still completes
the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyoco_server.config.packs import PackConfig
from pyoco_server.core.judging.rules import MAX_LENGTH, Rule, judge
from pyoco_server.core.priced.envelope import PackResult
from pyoco_server.executors.packs.port import Context, Execute

__all__ = ["executor"]


def executor(config: PackConfig) -> Execute:
    """O(n) per rule; the same inputs give the same findings. The findings never quote the text (PRICED-150)."""

    def execute(inputs: Mapping[str, Any], _: Context) -> PackResult:
        findings = judge(inputs["text"], [_rule(rule) for rule in inputs["rules"]])
        return PackResult(
            data={
                "verdict": "PASS" if all(finding.has_passed for finding in findings) else "FAIL",
                "findings": [
                    {
                        "rule_id": finding.rule_id,
                        "passed": finding.has_passed,
                        "count": finding.count,
                        "first_offset": finding.first_offset,
                    }
                    for finding in findings
                ],
            },
            actual_cost_usd_micros=config.prices.compliance.of(1),
        )

    return execute


def _rule(given: Mapping[str, Any]) -> Rule:
    value = given["value"]
    return Rule(
        id=given["id"],
        kind=given["kind"],
        value=int(value) if given["kind"] == MAX_LENGTH else value,  # JSON allows 10.0 for 10
        is_case_sensitive=given.get("case_sensitive", False),
    )
