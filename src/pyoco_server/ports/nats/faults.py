"""The errors of the NATS layer. Each type tells whether something may have been stored."""

from __future__ import annotations

from pyoco_server.errors import NoRoom, NotStored, ResourceMissing, Unavailable

__all__ = ["BadSubject", "Futile", "Missing", "NoConnection", "NotPermitted", "Rejected", "StreamFull", "gave_up"]


class Rejected(Exception):
    """JetStream refused the request. `code` is its err_code; 0: the request was not sent."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"{description} ({code})" if code else description)
        self.code = code


class BadSubject(Rejected):
    """The subject contains white space or control characters; nothing was sent, so there is no code.

    On the wire such a character ends the subject, and the rest would be parsed as a command.
    """

    def __init__(self, subject: str) -> None:
        super().__init__(0, f"{subject!r} is no subject")


class Futile(NotStored):
    """An immediate retry would not help."""


class NoConnection(Futile):
    """There is no connection to NATS, even after waiting for one."""


class NotPermitted(Futile):
    """The NATS user lacks the permission for an operation."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"NATS does not permit this user to {what}; "
            "what each role needs is printed by `pyoco-server-admin nats-permissions`"
        )


class Missing(ResourceMissing, Futile):
    """The stream does not exist, according to the JetStream API, so nothing was stored.

    Not retried, because a stream is not recreated by itself.
    """


class StreamFull(NoRoom, NotStored):
    """NATS refused the write for lack of room: nothing was stored."""


def gave_up(doing: str, error: Unavailable, *, ambiguous: bool) -> Unavailable:
    """Return the error to raise after the last attempt. `ambiguous`: an earlier attempt may have been stored."""
    if isinstance(error, ResourceMissing):
        return (ResourceMissing if ambiguous else Missing)(error.resource, doing)
    is_full = isinstance(error, NoRoom)
    if ambiguous:
        return (NoRoom if is_full else Unavailable)(f"{doing}: {error}")
    return (StreamFull if is_full else NotStored)(f"{doing}: {error}")
