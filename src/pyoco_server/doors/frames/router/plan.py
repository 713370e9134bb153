"""The configuration of a router: its backends, and which job may go to which of them (GRID-134, GRID-136). Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pyoco_server.client.frames.shares import Policy
from pyoco_server.core.programs.names import is_group
from pyoco_server.errors import UsageError
from pyoco_server.frames.addresses import Address

__all__ = ["DENY", "RoutedGroup", "RouterPlan", "RoutingRule", "read_backend", "read_rule"]

#: The target of denied jobs.
DENY = "deny"
_GLOB = re.compile(r"[A-Za-z0-9_*?\[\]!-]{1,64}", re.ASCII)


@dataclass(frozen=True)
class RoutedGroup:
    """One group, by the name used in rules and placements."""

    name: str
    doors: tuple[Address, ...]


@dataclass(frozen=True)
class RoutingRule:
    """Sends jobs whose program, or client, matches to `target`."""

    #: `exec` or `client`.
    about: str
    glob: str
    #: The name of a backend, or DENY.
    target: str

    def matches(self, exec_name: str, client_id: str) -> bool:
        return fnmatchcase(exec_name if self.about == "exec" else client_id, self.glob)


@dataclass(frozen=True)
class RouterPlan:
    backends: tuple[RoutedGroup, ...]
    rules: tuple[RoutingRule, ...] = ()
    policy: Policy = "rr"

    def __post_init__(self) -> None:
        names = [backend.name for backend in self.backends]
        if not names:
            raise UsageError("a router needs a backend; example: --backend g1=127.0.0.1:5000")
        duplicate = next((name for name in names if names.count(name) > 1), None)
        if duplicate is not None:
            raise UsageError(
                f"--backend {duplicate} is given twice; example: --backend {duplicate}=host:5000|host:5001"
            )
        invalid = next((rule for rule in self.rules if rule.target not in (*names, DENY)), None)
        if invalid is not None:
            raise UsageError(f"a rule names an unknown backend, {invalid.target!r}; known: {', '.join(names)}")

    def target(self, exec_name: str, client_id: str) -> str | None:
        """Return the target of the first rule that matches. None: no rule matches. O(rules)."""
        return next((rule.target for rule in self.rules if rule.matches(exec_name, client_id)), None)


def read_backend(text: str) -> RoutedGroup:
    """Parse `NAME=host:port|host:port`. Raises UsageError."""
    name, _, doors = text.partition("=")
    if not is_group(name) or name == DENY or not doors:
        raise UsageError(f"--backend {text[:80]!r} is not NAME=host:port; example: --backend g1=127.0.0.1:5000")
    return RoutedGroup(name, _addresses(doors.split("|")))


def _addresses(texts: Sequence[str]) -> tuple[Address, ...]:
    return tuple(dict.fromkeys(Address.read(text) for text in texts))


def read_rule(text: str) -> RoutingRule:
    """Parse `exec=GLOB:GROUP`, `client=GLOB:GROUP` or `exec=GLOB:deny`. Raises UsageError."""
    about, _, rest = text.partition("=")
    glob, _, target = rest.rpartition(":")
    if about not in ("exec", "client") or _GLOB.fullmatch(glob) is None or not is_group(target):
        raise UsageError(f"--rule {text[:80]!r} is not exec=GLOB:GROUP; example: --rule 'exec=render*:g1'")
    return RoutingRule(about, glob, target)
