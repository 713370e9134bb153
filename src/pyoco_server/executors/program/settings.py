"""Settings and limits for running programs, in a form that can be passed to another process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from pyoco_server.core.programs.record import CANCEL_GRACE_SECONDS
from pyoco_server.executors.strays.owners import own_text

if TYPE_CHECKING:  # the runner does not import it
    from pyoco_server.config.grid import GridConfig

__all__ = ["PACKED", "RunnerSettings"]

#: In the root of job directories: per worker, the archives that were not fetched yet.
PACKED = ".packed"
#: GRID-94: the variables of our environment that a program receives, if they are set.
_PASSED = ("PATH", "LANG", "LC_ALL", "TZ")


@dataclass(frozen=True, kw_only=True)
class RunnerSettings:
    exec_dir: str
    work_root: str
    #: Patterns of names that may be run.
    allow: tuple[str, ...] = ("*",)
    #: Variables that every program receives.
    environment: Mapping[str, str]
    keeps_jobs: bool = False
    stdio_bytes_max: int = 1 << 20
    output_bytes_max: int = 1 << 30
    slots: int = 4
    #: GRID-99: between SIGTERM and SIGKILL.
    kill_seconds: float = CANCEL_GRACE_SECONDS
    #: GRID-100: how long pipes held open by other processes are read, and how long the rest of a group may take to
    #: exit.
    linger_seconds: float = 2.0
    #: The bounds of captured lines (`Limits`): of a line, of the beginning and of the end. None: nothing is captured.
    log_limits: tuple[int, int, int] | None = None
    #: This process, as an owner text.
    owner: str

    @classmethod
    def of(cls, config: GridConfig, variables: Mapping[str, str]) -> Self:
        """`variables` are those of this process; this method decides which of them programs receive."""
        names = (*_PASSED, *config.worker_env_pass)
        # Normalized, independent of the working directory: later workers find leftovers by this path. A root that is
        # itself a link is not resolved; it is refused.
        above, root = os.path.split(os.path.abspath(config.work_root))
        return cls(
            exec_dir=os.path.abspath(config.exec_dir),
            work_root=os.path.join(os.path.realpath(above), root),
            allow=config.worker_exec_allow,
            environment={name: variables[name] for name in names if name in variables},
            keeps_jobs=config.worker_keep_jobs,
            stdio_bytes_max=config.exec_stdio_max,
            output_bytes_max=config.exec_output_max_bytes,
            slots=config.worker_max_par,
            owner=own_text(),
        )

    def to_values(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def packed_dir(self) -> str:
        """Directory of archives that were not fetched yet."""
        return f"{self.work_root}/{PACKED}/{self.owner}"

    def packed_path(self, place: str) -> str:
        """Path of the archive of the attempt in that directory."""
        job, attempt = place.rsplit("/", 2)[1:]
        return f"{self.packed_dir}/{job}-{attempt}.zip"
