"""Runs programs: each in its own directory and process group, within limits."""

from __future__ import annotations

from pathlib import Path

__all__ = ["SAMPLES"]

#: Sample programs (GRID-192): `EXEC_DIR` may point here.
SAMPLES = Path(__file__).parent / "samples"
