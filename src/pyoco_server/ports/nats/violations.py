"""The permissions that NATS has refused to a link. For a violation NATS sends an error, but no response."""

from __future__ import annotations

import re

from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.faults import NotPermitted

__all__ = ["Violations"]

log = get_logger(__name__)

#: The error of NATS for a missing permission; the library converts it to lower case.
_VIOLATION = re.compile(r'permissions violation for (?P<act>publish|subscription) to "(?P<subject>[^"]*)"')
#: The number of different violations that are logged, once each.
_LOGGED_MAX = 100
_KIND_TOKENS = 5
#: The delay before reconnecting if the inbox is not permitted, in case the permissions have changed; it doubles up to a
#: limit.
_REFUSED_SECONDS, _REFUSED_SECONDS_MAX = 5.0, 60.0


class Violations:
    def __init__(self) -> None:
        #: Why responses cannot be received; None: they can.
        self.inbox: NotPermitted | None = None
        self._retry_at = float("-inf")
        self._seconds = _REFUSED_SECONDS
        self._logged_kinds: set[str] = set()
        #: The subjects that NATS did not permit us to subscribe to on this connection, in lower case.
        self._subscriptions: set[str] = set()

    def note(self, error: Exception, inbox: str, url: str, now: float) -> str | None:
        """Record and log a violation. Returns the subject that we may not publish to, "" for a subscription; None: the
        error is of another kind."""
        found = _VIOLATION.search(str(error))
        if found is None:
            return None
        act, subject = found["act"], found["subject"]
        if act == "subscription" and subject.startswith(inbox.lower()):
            if self.inbox is None:
                self._delay_reconnect(now)
            self.inbox = NotPermitted(f"hear answers on {inbox}.*, which PYOCO_NATS_INBOX_PREFIX is for")
        if act == "subscription" and len(self._subscriptions) < _LOGGED_MAX:
            self._subscriptions.add(subject)
        kind = ".".join(subject.split(".")[:_KIND_TOKENS])  # the rest is often a generated name
        if kind not in self._logged_kinds and len(self._logged_kinds) < _LOGGED_MAX:
            self._logged_kinds.add(kind)
            log.error("NATS does not permit this", act=act, subject=subject, url=url)
        return subject if act == "publish" else ""

    def check_heard(self, subject: str) -> None:
        """Raise NotPermitted if this subscription was refused."""
        if subject.lower() in self._subscriptions:
            raise NotPermitted(f"subscribe to {subject}")

    def is_retry_due(self, now: float) -> bool:
        """Whether to reconnect: restored permissions do not restore the subscription of the inbox."""
        return self.inbox is not None and now > self._retry_at

    def forget(self) -> None:
        """The connection is lost: permissions may differ on the next one."""
        self.inbox = None
        self._subscriptions.clear()

    def _delay_reconnect(self, now: float) -> None:
        is_new = now - self._retry_at > _REFUSED_SECONDS_MAX
        self._seconds = _REFUSED_SECONDS if is_new else min(2 * self._seconds, _REFUSED_SECONDS_MAX)
        self._retry_at = now + self._seconds
