"""A place where programs run: a directory of them, a root for their job directories, and an executor."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyoco_server.config.grid import GridConfig
from pyoco_server.executors.capture.port import Collector
from pyoco_server.executors.program import SAMPLES
from pyoco_server.executors.program.local import LocalPrograms
from pyoco_server.executors.program.port import ProgramOutcome, ProgramWork, WorkFile
from pyoco_server.executors.program.settings import RunnerSettings

__all__ = ["ProgramSite", "processes_with"]


class ProgramSite:
    """`home` gets `exe`, with the samples and what `program` adds, and `jobs`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.exe, self.jobs = home / "exe", home / "jobs"
        self.exe.mkdir()
        for sample in SAMPLES.iterdir():
            (self.exe / sample.name).write_bytes(sample.read_bytes())

    def program(self, file_name: str, text: str, mode: int = 0o755) -> str:
        """Returns its ExecName."""
        path = self.exe / file_name
        path.write_text(text)
        path.chmod(mode)
        return path.stem

    def settings(self, variables: Mapping[str, str] | None = None, **config: Any) -> RunnerSettings:
        grid = GridConfig(exec_dir=str(self.exe), work_root=str(self.jobs), **config)
        return RunnerSettings.of(grid, os.environ if variables is None else variables)

    @contextlib.asynccontextmanager
    async def executor(
        self,
        variables: Mapping[str, str] | None = None,
        *,
        change: Mapping[str, Any] | None = None,
        collector: Collector | None = None,
        **config: Any,
    ) -> AsyncIterator[LocalPrograms]:
        """`change` are values of the executor's own settings."""
        settings = replace(self.settings(variables, **config), **(change or {}))
        executor = LocalPrograms(settings, os.environ, collector)
        await executor.start()
        try:
            yield executor
        finally:
            await executor.stop()

    def left(self) -> list[str]:
        """What is in the root, but for what belongs to it."""
        return sorted(path.name for path in self.jobs.iterdir() if path.name != ".packed")

    @staticmethod
    def work(exec_name: str, *args: str, files: Sequence[WorkFile] = (), **more: Any) -> ProgramWork:
        job_id = str(uuid.uuid4())
        defaults = {"job_id": job_id, "run_id": job_id, "attempt": 1, "client_id": "clientA", "timeout_sec": 200.0}
        return ProgramWork(exec_name=exec_name, args=args, files=files, **{**defaults, **more})

    @classmethod
    async def run(cls, executor: LocalPrograms, exec_name: str, *args: str, **more: Any) -> ProgramOutcome:
        return await executor.begin(cls.work(exec_name, *args, **more)).outcome()


def processes_with(text: str) -> list[int]:
    """Processes that live and whose command line, environment or directory has this text."""
    found = []
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal() or int(path.name) == os.getpid():
            continue
        with contextlib.suppress(OSError, IndexError):
            if (path / "stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                continue
            parts = [(path / "cmdline").read_bytes(), (path / "environ").read_bytes()]
            if b"program.runner" not in parts[0]:  # that one passes through every directory
                parts.append(os.fsencode((path / "cwd").readlink()))
            if any(text.encode() in part for part in parts):
                found.append(int(path.name))
    return found
