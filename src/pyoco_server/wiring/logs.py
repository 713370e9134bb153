"""Builds what stores the lines that runs print."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.run_log.attempt_log import Limits
from pyoco_server.loops.log_sender import LogSender, LogSink, StoredLines
from pyoco_server.ports.backend import Backend

__all__ = ["log_sender", "open_log_sender"]


@contextlib.asynccontextmanager
async def open_log_sender(backend: Backend) -> AsyncIterator[LogSender | None]:
    """Store what runs print, until the end of the block. Yields None if logs are disabled."""
    if backend.logs is None:
        yield None
        return
    sender = log_sender(backend.config, StoredLines(backend.logs), backend.is_up)
    try:
        yield sender
    finally:
        await sender.stop()


def log_sender(config: NatsBackendConfig, sink: LogSink, is_up: Callable[[], bool]) -> LogSender:
    limits = Limits(config.logs_line_max_bytes, config.logs_run_head_bytes, config.logs_run_tail_bytes)
    level = logging.getLevelNamesMapping()[config.logs_level]
    return LogSender(sink, limits, level, config.logs_buffer_bytes, is_up)
