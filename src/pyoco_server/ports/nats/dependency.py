"""Maps NATS errors to the dependency errors of priced runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import nats.errors

from pyoco_server.errors import DependencyUnavailable, ResourceMissing, Unavailable
from pyoco_server.ports.nats.link import Rejected

__all__ = ["MissingDependency", "dependency_errors"]


class MissingDependency(ResourceMissing, DependencyUnavailable):
    """A stream or object store of priced runs does not exist."""


@contextlib.contextmanager
def dependency_errors(doing: str) -> Iterator[None]:
    """Convert errors of NATS into DependencyUnavailable. `doing` is a verb with its object, for the message."""
    try:
        yield
    except ResourceMissing as error:
        raise MissingDependency(error.resource, f"cannot {doing}") from error
    except (Unavailable, Rejected, nats.errors.Error) as error:
        raise DependencyUnavailable(f"cannot {doing}: {error}") from error
