"""What can go wrong between us and NATS, and what it says about whether something was stored."""

from __future__ import annotations

from pyoco_server.errors import NoRoom, NotStored, ResourceMissing, Unavailable

__all__ = ["BadSubject", "Full", "Futile", "Missing", "NoConnection", "NotPermitted", "Rejected", "gave_up"]


class Rejected(Exception):
    """JetStream answered, and the answer was no. `code` is its err_code."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"{description} ({code})" if code else description)  # 0: it was not asked
        self.code = code


class BadSubject(Rejected):
    """White space or a control character in a subject ends it on the wire, and what follows is read as a command: it is
    not sent. JetStream was not asked, so there is no code."""

    def __init__(self, subject: str) -> None:
        super().__init__(0, f"{subject!r} is no subject")


class Futile(NotStored):
    """No use in trying again at once."""


class NoConnection(Futile):
    """There is no connection to NATS, and waiting for one did not help."""


class NotPermitted(Futile):
    """NATS lets this user in, and not do this."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"NATS does not permit this user to {what}; "
            "what each role needs is printed by `pyoco-server-admin nats-permissions`"
        )


class Missing(ResourceMissing, Futile):
    """The JetStream API says that the stream does not exist, so nothing was stored. No retry: it does not return by
    itself."""


class Full(NoRoom, NotStored):
    """NATS has no room, and said so: nothing was stored."""


def gave_up(doing: str, error: Unavailable, *, ambiguous: bool) -> Unavailable:
    """What to raise after the last try: whether something may have been stored, and whether room was lacking."""
    if isinstance(error, ResourceMissing):
        return (ResourceMissing if ambiguous else Missing)(error.resource, doing)
    is_full = isinstance(error, NoRoom)
    if ambiguous:
        return (NoRoom if is_full else Unavailable)(f"{doing}: {error}")
    return (Full if is_full else NotStored)(f"{doing}: {error}")
