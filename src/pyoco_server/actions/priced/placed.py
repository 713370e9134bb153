"""A submission that has its row and its reservation."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.core.priced.run import PricedRun

__all__ = ["Placed"]


@dataclass(frozen=True)
class Placed:
    run: PricedRun
    balance_usd_micros: int
    #: It had them before: no message has to be sent.
    is_replayed: bool = False
