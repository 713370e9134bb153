"""Translates errors of the database into ours: this is the only place.

No text of the database goes into a message: it may quote a row, or disclose the ledger's location.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sqlalchemy import exc

from pyoco_server.errors import DependencyUnavailable, KeyBusy
from pyoco_server.ports.ledger.port import LedgerRefused

__all__ = ["LedgerRefused", "ended_for_another", "ledger_errors", "lost_connection", "waiting_for_key"]

_LOCK_TIMEOUT = "55P03"
#: Serialization failure and deadlock: nothing was changed, and a retry may succeed immediately.
_AGAIN = frozenset({"40001", "40P01"})
#: SQLite's code for an invalid statement; its driver has no specific code for that.
_WRONG = "SQLITE_ERROR"
#: Neither a fault of the database nor an outage: it rejected an invalid write.
_OURS = (exc.IntegrityError, exc.DataError, exc.ProgrammingError, exc.NotSupportedError)


@contextlib.contextmanager
def ledger_errors() -> Iterator[None]:
    try:
        yield
    except _OURS as error:
        # Without its cause: the database quotes the row, and with it user input (PRICED-171).
        raise LedgerRefused(f"the ledger refused a statement ({_name(error)})") from None
    except exc.DBAPIError as error:
        if _code(error) == _WRONG:
            raise LedgerRefused("a statement for the ledger is wrong") from error
        raise DependencyUnavailable(f"the ledger did not answer ({_name(error)})") from error
    except exc.SQLAlchemyError as error:
        raise LedgerRefused(f"a statement for the ledger is wrong ({type(error).__name__})") from error
    except UnicodeEncodeError:
        # Raised by the driver, before the database receives it; also without its cause, which contains the text.
        raise LedgerRefused("a text for the ledger holds half a character") from None
    except OSError as error:
        raise DependencyUnavailable(
            f"the ledger cannot be reached ({error.strerror or type(error).__name__})"
        ) from error


@contextlib.contextmanager
def waiting_for_key() -> Iterator[None]:
    """Wraps the one statement that waits for another submit with the same key."""
    try:
        yield
    except exc.DBAPIError as error:
        if _code(error) == _LOCK_TIMEOUT:
            raise KeyBusy("the same idempotency key is being submitted right now") from error
        raise


def ended_for_another(error: exc.SQLAlchemyError) -> bool:
    """Whether PostgreSQL aborted this transaction in favour of another."""
    return isinstance(error, exc.DBAPIError) and _code(error) in _AGAIN


def lost_connection(error: exc.SQLAlchemyError) -> bool:
    return isinstance(error, exc.DBAPIError) and error.connection_invalidated


def _code(error: exc.DBAPIError) -> str:
    """PostgreSQL's SQLSTATE or SQLite's name of the error; empty if a connection broke."""
    found = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "sqlite_errorname", None)
    return found if isinstance(found, str) else ""


def _name(error: exc.DBAPIError) -> str:
    """A safe description for an operator: the code, and the constraint if there is one."""
    constraint = getattr(getattr(error.orig, "diag", None), "constraint_name", None)
    return " ".join(filter(None, (_code(error) or type(error.orig).__name__, constraint)))
