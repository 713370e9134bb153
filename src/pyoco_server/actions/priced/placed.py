"""A submission that has its row and its money."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.core.priced.run import PricedRun

__all__ = ["Placed"]


@dataclass(frozen=True)
class Placed:
    run: PricedRun
    balance_usd_micros: int
    #: It had them before: there is nothing to send.
    is_replayed: bool = False
