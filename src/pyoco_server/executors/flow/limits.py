"""How much of its values a run may leave behind."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OutputLimits"]


@dataclass(frozen=True)
class OutputLimits:
    """In bytes: the largest value that is kept in the record, the largest output, and all outputs of a run."""

    inline_bytes_max: int = 16_384
    output_bytes_max: int = 1_073_741_824
    run_bytes_max: int = 4_294_967_296
