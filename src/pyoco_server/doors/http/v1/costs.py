"""The amounts in a response: identical texts in its headers and its body (PRICED-36, PRICED-83)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from pyoco_server.core.priced.money import usd_down, usd_exact, usd_up
from pyoco_server.core.priced.run import PricedRun

__all__ = ["UNKNOWN", "Costs"]


@dataclass(frozen=True)
class Costs:
    """Amounts in micros; zero while unknown."""

    reserved_usd_micros: int = 0
    used_usd_micros: int = 0
    remaining_usd_micros: int = 0
    tokens: int = 0

    def of_run(self, run: PricedRun) -> Self:
        """Return a copy with the run's amounts; the budget is unchanged."""
        return replace(
            self,
            reserved_usd_micros=run.reserved_usd_micros,
            used_usd_micros=run.used_usd_micros,
            tokens=run.tokens_consumed,
        )

    def left_with(self, balance_usd_micros: int) -> Self:
        return replace(self, remaining_usd_micros=balance_usd_micros)

    @property
    def reserved_usd(self) -> str:
        return usd_exact(self.reserved_usd_micros)

    @property
    def used_usd(self) -> str:
        return usd_up(self.used_usd_micros)

    @property
    def remaining_usd(self) -> str:
        return usd_down(self.remaining_usd_micros)

    def headers(self) -> dict[str, str]:
        """PRICED-82"""
        return {
            "X-DPP-Cost-Reserved": self.reserved_usd,
            "X-DPP-Cost-Used": self.used_usd,
            "X-DPP-Budget-Remaining": self.remaining_usd,
            "X-DPP-Tokens-Consumed": str(self.tokens),
        }


#: Nothing is known: "0.0000" everywhere.
UNKNOWN = Costs()
