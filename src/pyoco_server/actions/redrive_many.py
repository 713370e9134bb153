"""Redrive many dead letters."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyoco_server.actions.redrive import redrive
from pyoco_server.actions.walk_dead_letters import Span, walk_dead_letters
from pyoco_server.core.run import Caller
from pyoco_server.errors import DeadLetterNotFound, PyocoError, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.dead_letters.port import DeadLetterFilter, StoredDeadLetter

__all__ = ["PROBLEMS_MAX", "Redriven", "redrive_many"]

log = get_logger(__name__)

PROBLEMS_MAX = 20


@dataclass
class Redriven:
    """The outcome of a request."""

    #: Letters that were processed. Those neither redriven nor failed had been redriven or deleted by another caller
    #: just before.
    matched: int = 0
    redriven: int = 0
    failed: int = 0
    #: The errors of the first few failures, with the letters' ids.
    problems: list[tuple[int, PyocoError]] = field(default_factory=list)
    #: Where the next request continues; None: nothing is left.
    next_before: int | None = None
    #: The highest revision that this request wrote.
    revision: int = 0


async def redrive_many(backend: GatewayBackend, caller: Caller, wanted: DeadLetterFilter, span: Span) -> Redriven:
    """Redrive each letter as `redrive` does, without a change. One that cannot be redriven stays, and the walk
    continues below it.

    A crash leaves some redriven and others not; repeating the request redrives the others. Raises Unavailable only if
    nothing was done.
    """
    done = Redriven()

    async def each(item: StoredDeadLetter) -> None:
        try:
            accepted = await redrive(backend, caller, str(item.letter_id))
        except DeadLetterNotFound:
            return  # redriven or deleted by another caller a moment ago
        except Unavailable:
            raise
        except PyocoError as error:
            done.failed += 1
            log.info("cannot redrive a dead letter", letter_id=item.letter_id, error=error)
            if len(done.problems) < PROBLEMS_MAX:
                done.problems.append((item.letter_id, error))
        else:
            done.redriven += 1
            done.revision = max(done.revision, accepted.stored.revision)

    walked = await walk_dead_letters(backend, caller, wanted, span, each)
    done.matched, done.next_before = walked.matched, walked.next_before
    log.info("redrove dead letters", matched=done.matched, redriven=done.redriven, failed=done.failed)
    return done
