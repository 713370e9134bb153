"""Which failures a policy retries (RETRY-9)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pyoco_server.core.retries.policy import RetryPolicy

__all__ = [
    "EXIT_MAX",
    "LOST",
    "MATCHER_LENGTH_MAX",
    "MEMORY",
    "NAMES_MAX",
    "TIMEOUT",
    "UNNAMED",
    "Failure",
    "exited",
    "killed",
    "matcher_problem",
    "raised",
    "retries",
]

TIMEOUT: Final = "timeout"
LOST: Final = "lost"
MEMORY: Final = "memory"
_ANY: Final = "*"
EXIT_MAX: Final = 255
_SIGNAL_MAX: Final = 64
MATCHER_LENGTH_MAX: Final = 256
#: Names recorded of one exception. A class with more bases and aliases is matched by its first ones.
NAMES_MAX: Final = 64

_EXIT = re.compile(r"exit:([0-9]{1,3})(?:-([0-9]{1,3}))?")
_SIGNAL = re.compile(r"signal:([0-9]{1,2})")
_WORDS: Final = (_ANY, TIMEOUT, LOST, MEMORY, "signal")
_RULE: Final = f"must be {', '.join(_WORDS)}, signal:<n>, exit:<n>, exit:<a>-<b>, or the name of an exception class"


@dataclass(frozen=True)
class Failure:
    """What a try failed with."""

    #: As records show it: `timeout`, `lost`, `memory`, `exit:3`, `signal:9`, `exception:<class>`; `*`: none of these.
    kind: str
    #: Of an exception: the qualified names of its class and all bases, aliases included.
    names: tuple[str, ...] = ()


#: A failure that only `*` matches.
UNNAMED: Final = Failure("*")


def raised(names: Iterable[str], *, is_memory: bool = False) -> Failure:
    """The failure by an exception; `names` begins with its own class."""
    known = tuple(names)[:NAMES_MAX]
    own = known[0].removeprefix("builtins.") if known else "Exception"
    return Failure(MEMORY if is_memory else f"exception:{own}", known)


def exited(code: int) -> Failure:
    return Failure(f"exit:{code}")


def killed(number: int) -> Failure:
    return Failure(f"signal:{number}")


def matcher_problem(text: str) -> str | None:
    """Return what is wrong with a matcher, or None."""
    if len(text) > MATCHER_LENGTH_MAX:
        return f"has at most {MATCHER_LENGTH_MAX} characters"
    if text in _WORDS:
        return None
    if text == "exit" or text.startswith("exit:"):
        return None if _is_exit(text) else f"must be exit:<n> or exit:<a>-<b>, with codes from 0 to {EXIT_MAX}"
    if text.startswith("signal:"):
        return None if _is_signal(text) else f"must be signal, or signal:<n> with a number from 1 to {_SIGNAL_MAX}"
    return None if all(part.isidentifier() for part in text.split(".")) else _RULE


def _is_exit(text: str) -> bool:
    found = _EXIT.fullmatch(text)
    return found is not None and int(found[1]) <= int(found[2] or found[1]) <= EXIT_MAX


def _is_signal(text: str) -> bool:
    found = _SIGNAL.fullmatch(text)
    return found is not None and 1 <= int(found[1]) <= _SIGNAL_MAX


def retries(policy: RetryPolicy, failure: Failure) -> bool:
    """Return whether the policy retries this failure; `never_on` wins."""
    is_named = any(_matches(matcher, failure) for matcher in policy.retry_on)
    return is_named and not any(_matches(matcher, failure) for matcher in policy.never_on)


def _matches(matcher: str, failure: Failure) -> bool:
    if matcher == _ANY:
        return failure.kind != LOST
    if matcher == failure.kind or (matcher == "signal" and failure.kind.startswith("signal:")):
        return True
    if (codes := _EXIT.fullmatch(matcher)) is not None:
        if not failure.kind.startswith("exit:"):
            return False
        return int(codes[1]) <= int(failure.kind.removeprefix("exit:")) <= int(codes[2] or codes[1])
    if "." in matcher:
        return matcher in failure.names
    return any(name.rpartition(".")[2] == matcher for name in failure.names)
