"""The prices of the packs: one tariff each, in whole micros of a US dollar (PRICED-127, SAFE-1).

The gateway refuses reservations below the known cost of the inputs, and a worker charges and stops by the same
tariffs. Both create them from the settings `PYOCO_PRICE_*` (`PackConfig.prices`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyoco_server.core.priced.constants import MINIMUM_FEE_MIN_USD_MICROS

__all__ = ["DECISION_COST_USD_MICROS", "RESERVATION_MIN_USD_MICROS", "Prices", "Tariff"]

#: PRICED-127: fixed.
DECISION_COST_USD_MICROS: Final = 50_000
#: The smallest reservation of any run. A failed run costs at least as much, so its fee never exceeds the reservation.
RESERVATION_MIN_USD_MICROS: Final = MINIMUM_FEE_MIN_USD_MICROS


@dataclass(frozen=True)
class Tariff:
    """A base price, and a price per unit of work: a URL, a page, a case."""

    base_usd_micros: int
    each_usd_micros: int = 0

    def of(self, units: int) -> int:
        """Return the price of this many units."""
        return self.base_usd_micros + self.each_usd_micros * units

    def covered(self, reserved_usd_micros: int, units: int) -> int:
        """Return how many of these units the reservation pays for."""
        rest = reserved_usd_micros - self.base_usd_micros
        if rest < 0:
            return 0
        return units if self.each_usd_micros == 0 else min(units, rest // self.each_usd_micros)


@dataclass(frozen=True, kw_only=True)
class Prices:
    """The tariffs of the built-in packs."""

    decision: Tariff = Tariff(DECISION_COST_USD_MICROS)
    compliance: Tariff
    #: Per case.
    eval: Tariff
    #: Per URL to which a connection was attempted.
    url: Tariff
    #: Per page that was read.
    ocr: Tariff
