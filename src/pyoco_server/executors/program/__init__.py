"""How a program is run: in a directory of its own, in a process group of its own, within limits."""

from __future__ import annotations

from pathlib import Path

__all__ = ["SAMPLES"]

#: Programs to try things out with (GRID-192): `EXEC_DIR` may point here.
SAMPLES = Path(__file__).parent / "samples"
