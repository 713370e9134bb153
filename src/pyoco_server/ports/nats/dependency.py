"""Where NATS serves priced runs it is one of their dependencies, and an outage has the same name as any other's."""

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
    """The only place where an error of NATS becomes DependencyUnavailable. `doing` is a verb and what it is done to."""
    try:
        yield
    except ResourceMissing as error:
        raise MissingDependency(error.resource, f"cannot {doing}") from error
    except (Unavailable, Rejected, nats.errors.Error) as error:
        raise DependencyUnavailable(f"cannot {doing}: {error}") from error
