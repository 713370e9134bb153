"""Errors of the disk that a backup is written to, or restored to."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from pyoco_server.errors import BackupFailed, NoRoom

__all__ = ["disk_troubles"]

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextlib.contextmanager
def disk_troubles(doing: str) -> Iterator[None]:
    """The only place that translates disk errors into ours."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise (NoRoom if error.errno in _FULL else BackupFailed)(f"cannot {doing}: {reason}") from error
