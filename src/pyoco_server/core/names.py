"""Names that users choose, and their format (section 4 of the contract)."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["check_worker_names", "host_word", "is_run_id", "is_tag", "tag_problem", "worker_id_problem"]

#: FLOW-33. Tenant ids have the same format (FLOW-41).
TAG_PATTERN = r"^[A-Za-z0-9_-]+$"
TAG_LENGTH_MAX = 128

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_TAG = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
#: Tokens of a subject. An empty token, as between two dots, would be an invalid key for NATS.
_WORKER_ID = re.compile(r"[A-Za-z0-9_=-]+(\.[A-Za-z0-9_=-]+)*", re.ASCII)
WORKER_ID_LENGTH_MAX = 200
_HOST_WORD_LENGTH_MAX = 100


def is_tag(tag: str) -> bool:
    """FLOW-33: whether this is a valid tag over HTTP. Other sources of tags should follow it too."""
    return len(tag) <= TAG_LENGTH_MAX and _TAG.fullmatch(tag) is not None


def tag_problem(tag: str) -> str | None:
    """Return why a worker cannot serve this tag, or None (FLOW-34). Less strict than `is_tag`, for the names of older
    versions."""
    if not tag:
        return "a tag must not be empty"
    if any(character.isspace() or character in ".*>/\\" or not character.isprintable() for character in tag):
        return f"tag {tag!r} must not contain a dot, white space, a slash, '*' or '>'"
    if len(tag) > TAG_LENGTH_MAX:
        return f"a tag has at most {TAG_LENGTH_MAX} characters, this one has {len(tag)}"
    return None


def worker_id_problem(worker_id: str) -> str | None:
    """Return why this is not a valid worker id, or None (FLOW-38)."""
    if not worker_id:
        return "a worker id must not be empty"
    if len(worker_id) > WORKER_ID_LENGTH_MAX or _WORKER_ID.fullmatch(worker_id) is None:
        return (
            f"worker id {worker_id!r} may hold letters, digits and '_', '=', '-', and single dots inside, "
            f"{WORKER_ID_LENGTH_MAX} characters at most"
        )
    return None


def host_word(hostname: str) -> str:
    """Return the name of a machine as part of a worker id."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", hostname)[:_HOST_WORD_LENGTH_MAX] or "worker"


def check_worker_names(worker_id: str, tags: Sequence[str]) -> None:
    """Raise ValueError for an invalid worker id or tag (FLOW-34, FLOW-38)."""
    for problem in (worker_id_problem(worker_id), *map(tag_problem, tags)):
        if problem is not None:
            raise ValueError(problem)


def is_run_id(text: str) -> bool:
    """FLOW-36: whether this is a UUID in canonical form. Any other id is treated like that of an unknown run."""
    return _UUID.fullmatch(text) is not None
