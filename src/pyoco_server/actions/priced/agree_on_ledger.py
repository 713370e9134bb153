"""Whether a process has the ledger that its deployment uses (SAFE-12)."""

from __future__ import annotations

from collections.abc import Callable

from pyoco_server.errors import OtherLedger
from pyoco_server.logs import get_logger
from pyoco_server.ports.known_ledger.port import KnownLedger, Remembered
from pyoco_server.ports.ledger.port import Ledger

__all__ = ["Standing", "agree_on_ledger", "compare_ledger", "refuse_missing_ledger"]

log = get_logger(__name__)

_ADOPT = "pyoco-server-admin ledger adopt"


class Standing:
    """Whether the ledger of this process is the deployment's, by the last comparison. Until the first one, it is not.

    The ledger asks it before each transaction, so that no money moves in the wrong one, whoever wants to move it.
    """

    def __init__(self) -> None:
        self._problem: str | None = "the ledger has not been compared yet with the one that this deployment uses"

    @property
    def is_own(self) -> bool:
        return self._problem is None

    def check(self) -> None:
        """Raises OtherLedger."""
        if self._problem is not None:
            raise OtherLedger(self._problem)

    def accept(self) -> None:
        if self._problem is not None:
            self._problem = None
            log.info("the ledger is the one that this deployment uses")

    def refuse(self, problem: OtherLedger) -> None:
        """Logged once for each problem, not once for each comparison."""
        if self._problem != str(problem):
            self._problem = str(problem)
            log.error("priced runs are stopped: this is not the ledger that the deployment uses", error=problem)


def _other(ledger_id: str | None, remembered: str) -> OtherLedger:
    has = f"this ledger has the id {ledger_id}" if ledger_id is not None else "there is no ledger with an id here"
    return OtherLedger(
        f"{has}, and this deployment uses the ledger {remembered}: correct PYOCO_LEDGER_URL or the data directory, "
        f"put that ledger back, or change to this one on purpose with `{_ADOPT}`"
    )


async def refuse_missing_ledger(known: KnownLedger) -> None:
    """Before a ledger is created: none may be created beside one that is remembered. Raises OtherLedger."""
    remembered = (await known.get()).ledger_id
    if remembered is not None:
        raise _other(None, remembered)


async def compare_ledger(ledger: Ledger, known: KnownLedger) -> Remembered:
    """For a process that does not decide: while no ledger is remembered, its own is accepted. Two reads.

    Raises OtherLedger, DependencyUnavailable.
    """
    remembered = await known.get()
    ledger_id = await ledger.stored_id()  # in any case: it raises when the file was deleted
    if remembered.ledger_id is not None and remembered.ledger_id != ledger_id:
        raise _other(ledger_id, remembered.ledger_id)
    return remembered


async def agree_on_ledger(ledger: Ledger, known: KnownLedger, new_id: Callable[[], str]) -> None:
    """For a gateway: as `compare_ledger`; and where no ledger is remembered, its own is remembered from now on.

    Of several that start at once the first one to be stored decides, and the others are compared with it. A ledger of
    an older version has no id and is given one. A crash between the two writes leaves a ledger with an id and nothing
    remembered: the next start goes on from there.
    """
    while True:
        remembered = await compare_ledger(ledger, known)
        if remembered.ledger_id is not None:
            return
        ledger_id = await ledger.stored_id() or await _given(ledger, new_id())
        if await known.remember(ledger_id, remembered):
            log.info("from now on this deployment uses this ledger and no other", ledger_id=ledger_id)
            return


async def _given(ledger: Ledger, ledger_id: str) -> str:
    return await ledger.transact(lambda tx: tx.identity.give(ledger_id))
