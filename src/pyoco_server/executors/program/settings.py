"""What running programs is bound by, in a form that can be handed to another process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from pyoco_server.executors.strays.owners import own_text

if TYPE_CHECKING:  # the runner needs none of it
    from pyoco_server.config.grid import GridConfig

__all__ = ["PACKED", "Settings"]

#: In the root of job directories: of each worker, the archives that nobody has taken yet.
PACKED = ".packed"
#: GRID-94: what a program sees of our environment, when it is set.
_PASSED = ("PATH", "LANG", "LC_ALL", "TZ")


@dataclass(frozen=True, kw_only=True)
class Settings:
    exec_dir: str
    work_root: str
    #: Patterns of names that may be run.
    allow: tuple[str, ...] = ("*",)
    #: Variables that every program sees.
    environment: Mapping[str, str]
    keeps_jobs: bool = False
    stdio_bytes_max: int = 1 << 20
    output_bytes_max: int = 1 << 30
    slots: int = 4
    #: GRID-99: between SIGTERM and SIGKILL.
    kill_seconds: float = 5.0
    #: GRID-100: how long pipes that others hold open are read, and how long the rest of a group may take to die.
    linger_seconds: float = 2.0
    #: This process, as the text of an owner.
    owner: str

    @classmethod
    def of(cls, config: GridConfig, variables: Mapping[str, str]) -> Self:
        """`variables` are those of this process: what a program may see of them is decided here."""
        names = (*_PASSED, *config.worker_env_pass)
        # In one spelling, whatever the process's own directory is: later workers find leftovers by it. A root that is
        # a link itself is not resolved, but refused.
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
        """Where archives lie until somebody has taken them."""
        return f"{self.work_root}/{PACKED}/{self.owner}"

    def packed_path(self, place: str) -> str:
        """Where the archive of the attempt in that directory lies."""
        job, attempt = place.rsplit("/", 2)[1:]
        return f"{self.packed_dir}/{job}-{attempt}.zip"
