"""What a proof found, in one line: printed, and added to the file that PYOCO_PROOFS_REPORT names.

with proof("P10", "workers are killed", jobs=300) as found:
    kills = found.chance.randrange(5)
    found.note(kills=kills)
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from support.proofs.sizes import IS_FULL, SEED

__all__ = ["Findings", "proof"]


@dataclass
class Findings:
    """Chance comes from here: the same seed gives the same choices."""

    chance: random.Random
    numbers: dict[str, Any] = field(default_factory=dict)

    def note(self, **numbers: Any) -> None:
        """Numbers that a reader wants to see; a later one replaces an earlier one of its name."""
        self.numbers.update(numbers)


@contextlib.contextmanager
def proof(number: str, name: str, **numbers: Any) -> Iterator[Findings]:
    """One experiment. Its line is written however it ends."""
    findings = Findings(random.Random(f"{SEED}:{number}"), dict(numbers))
    began, passed = time.monotonic(), False
    try:
        yield findings
        passed = True
    finally:
        line = {
            "proof": number,
            "name": name,
            "size": "full" if IS_FULL else "quick",
            "passed": passed,
            "seed": SEED,
            "seconds": round(time.monotonic() - began, 1),
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            **findings.numbers,
        }
        _write(json.dumps(line, default=str))


def _write(line: str) -> None:
    print(line)
    file = os.environ.get("PYOCO_PROOFS_REPORT")
    if file:
        with Path(file).open("a", encoding="utf-8") as report:
            report.write(line + "\n")
