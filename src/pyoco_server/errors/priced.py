"""Errors of priced runs and of what is kept for a limited time."""

from __future__ import annotations

from pyoco_server.errors.base import Problem, PyocoError

__all__ = ["ArtifactExpired", "BelowPrice", "LedgerOutdated", "OverBudget", "RunExpired", "TenantRateLimited"]


class LedgerOutdated(PyocoError):
    """The ledger's tables are not those of this version."""

    number = 43
    phrase = "ledger has to be migrated"


class BelowPrice(PyocoError):
    """The reservation is below the price that is known from the inputs. Nothing changed; the key is free."""

    number = 48
    phrase = "reservation below the price"

    def __init__(self, price_usd: str) -> None:
        problem = Problem(("reservation", "max_cost_usd"), f"must be at least {price_usd}, the price of these inputs")
        super().__init__(f"max_cost_usd is below {price_usd}, the price of these inputs", problems=(problem,))
        #: The least reservation that is accepted, with four decimals.
        self.price_usd = price_usd


class OverBudget(PyocoError):
    """The tenant's available money does not cover the reservation. Nothing changed; the key is free."""

    number = 38
    phrase = "budget does not cover the run"

    def __init__(self, balance_usd_micros: int) -> None:
        super().__init__("the available budget is smaller than max_cost_usd")
        self.balance_usd_micros = balance_usd_micros


class RunExpired(PyocoError):
    """The run is past its retention."""

    number = 39
    phrase = "run is past its retention"

    def __init__(
        self,
        run_id: str | None = None,
        *,
        reserved_usd_micros: int = 0,
        used_usd_micros: int = 0,
        tokens_consumed: int = 0,
    ) -> None:
        super().__init__()
        #: The amounts are kept longer than the content (PRICED-83).
        self.run_id = run_id
        self.reserved_usd_micros = reserved_usd_micros
        self.used_usd_micros = used_usd_micros
        self.tokens_consumed = tokens_consumed


class ArtifactExpired(PyocoError):
    """The files of the program are no longer kept."""

    number = 46
    phrase = "artifact expired"


class TenantRateLimited(PyocoError):
    """The tenant sends too many requests."""

    number = 40
    phrase = "too many requests"
