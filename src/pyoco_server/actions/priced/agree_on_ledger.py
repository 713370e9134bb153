"""Check that a process uses the ledger of its deployment (SAFE-12)."""

from __future__ import annotations

from collections.abc import Callable

from pyoco_server.errors import OtherLedger
from pyoco_server.logs import get_logger
from pyoco_server.ports.known_ledger.port import KnownLedger, Remembered
from pyoco_server.ports.ledger.port import Ledger

__all__ = ["LedgerAgreement", "agree_on_ledger", "compare_ledger", "refuse_missing_ledger"]

log = get_logger(__name__)

_ADOPT = "pyoco-server-admin ledger adopt"


class LedgerAgreement:
    """Whether the ledger of this process is the deployment's, by the last comparison. False until the first one.

    The ledger checks this before each transaction, so that no caller can move money in the wrong ledger.
    """

    def __init__(self) -> None:
        self._problem: str | None = "the ledger has not been compared yet with the one that this deployment uses"

    @property
    def is_own(self) -> bool:
        return self._problem is None

    def check(self) -> None:
        """Raise OtherLedger if the last comparison failed, or there was none yet."""
        if self._problem is not None:
            raise OtherLedger(self._problem)

    def accept(self) -> None:
        if self._problem is not None:
            self._problem = None
            log.info("the ledger is the one that this deployment uses")

    def refuse(self, problem: OtherLedger) -> None:
        """Stop priced runs. Logged once per problem, not once per comparison."""
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
    """Raise OtherLedger if the deployment uses a ledger already. Called before a ledger is created, so that no
    second one appears."""
    remembered = (await known.get()).ledger_id
    if remembered is not None:
        raise _other(None, remembered)


async def compare_ledger(ledger: Ledger, known: KnownLedger) -> Remembered:
    """Compare the ledger with the deployment's. While none is stored, the process's own is accepted. Two reads.

    For processes that do not decide which ledger is used. Raises OtherLedger, DependencyUnavailable.
    """
    remembered = await known.get()
    ledger_id = await ledger.stored_id()  # in any case: it raises if the file was deleted
    if remembered.ledger_id is not None and remembered.ledger_id != ledger_id:
        raise _other(ledger_id, remembered.ledger_id)
    return remembered


async def agree_on_ledger(ledger: Ledger, known: KnownLedger, new_id: Callable[[], str]) -> None:
    """Compare the ledger as `compare_ledger` does; if none is stored yet, store this one. For gateways.

    If several gateways start concurrently, the first id that is stored wins, and the others are compared with it. A
    ledger of an older version has no id and is given one. A crash between the two writes leaves a ledger with an id and
    no stored id: the next start continues from there.
    """
    while True:
        remembered = await compare_ledger(ledger, known)
        if remembered.ledger_id is not None:
            return
        ledger_id = await ledger.stored_id() or await _given(ledger, new_id())
        if await known.remember(ledger_id, remembered):
            log.info("this deployment uses this ledger from now on", ledger_id=ledger_id)
            return


async def _given(ledger: Ledger, ledger_id: str) -> str:
    return await ledger.transact(lambda tx: tx.identity.give(ledger_id))
