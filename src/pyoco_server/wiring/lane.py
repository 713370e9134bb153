"""Build the native lane of programs. Only workers of programs need it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.core.frames.subjects import (
    PATTERN_DEFAULT,
    PATTERNS_MAX,
    assign_subject,
    can_match_assign,
    check_pattern,
)
from pyoco_server.core.programs.faults import GridRefused
from pyoco_server.errors import UsageError
from pyoco_server.executors.capture.port import Collector
from pyoco_server.executors.program.find import names_in
from pyoco_server.executors.program.local import LocalPrograms
from pyoco_server.executors.program.settings import RunnerSettings
from pyoco_server.logs import get_logger
from pyoco_server.loops.programs.lane import ProgramLane
from pyoco_server.ports.backend import Backend

__all__ = ["checked_patterns", "installed_patterns", "program_lane"]

log = get_logger(__name__)


def checked_patterns(patterns: Sequence[str]) -> tuple[str, ...]:
    """Return the patterns without duplicates; by default one for all programs. Raises UsageError."""
    chosen = tuple(dict.fromkeys(patterns)) or (PATTERN_DEFAULT,)
    if len(chosen) > PATTERNS_MAX:
        raise UsageError(f"a worker has at most {PATTERNS_MAX} patterns; example: {PATTERN_DEFAULT}")
    for pattern in chosen:
        try:
            check_pattern(pattern)
        except GridRefused as error:
            raise UsageError(f"{pattern[:80]!r}: {error.message}; example: {PATTERN_DEFAULT}") from error
        if not can_match_assign(pattern):
            log.warning("pattern matches no program; did you mean job.assign.NAME?", pattern=pattern[:80])
    return chosen


def installed_patterns(exec_dir: str) -> tuple[str, ...]:
    """Return a pattern for each program installed in the directory now.

    So a worker does not take jobs that only other workers can run. Matches all programs if none is installed yet, or if
    there are more than the maximum number of patterns.
    """
    names = names_in(exec_dir)
    return tuple(map(assign_subject, names)) if 0 < len(names) <= PATTERNS_MAX else (PATTERN_DEFAULT,)


def program_lane(
    backend: Backend, worker_id: str, patterns: Sequence[str], collector: Collector | None = None
) -> ProgramLane:
    """Build the lane with the backend's settings of programs. The patterns must have been checked.

    `collector` gets what programs print.
    """
    executor = LocalPrograms(RunnerSettings.of(programs_of(backend).config, os.environ), os.environ, collector)
    return ProgramLane(backend, executor, worker_id, patterns)
