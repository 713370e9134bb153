"""How words are counted. Imported by the processes that execute this pack, and by nothing else."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from pyoco_server.packs import Artifact, Context, PackError, PackResult

__all__ = ["execute"]

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
#: What a run costs, and what each thousand words cost besides: in millionths of a dollar, and never as a float.
_BASE_USD_MICROS = 1_000
_THOUSAND_USD_MICROS = 100
#: So often it is looked whether anyone still waits for the result.
_LOOK_EVERY = 10_000


def execute(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    """The same text gives the same answer."""
    counts: Counter[str] = Counter()
    for number, found in enumerate(_WORD.finditer(inputs["text"])):
        if number % _LOOK_EVERY == 0 and ctx.cancelled.is_set():
            raise PackError("CANCELLED", "it was told to stop")
        counts[found.group().casefold()] += 1
    if not counts:
        raise PackError("NO_WORDS", "the text has no words in it")  # the run fails, and costs the minimum fee
    top = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: int(inputs.get("top", 10))]
    return PackResult(
        data={"words": counts.total(), "distinct": len(counts), "top": [{"word": w, "count": n} for w, n in top]},
        actual_cost_usd_micros=_BASE_USD_MICROS + counts.total() // 1_000 * _THOUSAND_USD_MICROS,
        artifacts=[_table(top)] if ctx.artifacts.get("include_markdown") else [],
        meta={"word_count": {"version": "1.0.0"}},
    )


def _table(top: list[tuple[str, int]]) -> Artifact:
    lines = ["| word | count |", "|---|---|", *(f"| {word} | {count} |" for word, count in top)]
    return Artifact(name="words.md", content_type="text/markdown", data="\n".join(lines).encode())
