"""Runs pip in a separate process that is limited in time and ends with the worker (FLOW-236)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.utils import canonicalize_name

from pyoco_server.embedded import die_with
from pyoco_server.errors import WheelSyncFailed
from pyoco_server.executors.wheels.file_work import file_work

__all__ = ["Pip"]

#: How much of pip's output is kept: its end, which contains the reason.
_TAIL_BYTES = 8192
_ERROR_CHARACTERS_MAX = 500
#: Limits the wait in containers whose init process leaves zombies, which count as members of their process group.
_GROUP_LOOKS_MAX, _GROUP_LOOK_SECONDS = 200, 0.01
_USERINFO = re.compile(r"://[^\s/\"'<>]*@")
#: The pip variables passed on when pip may use its user's index: network access only.
_NETWORK = frozenset(
    f"PIP_{name}"
    for name in (
        *("CONFIG_FILE", "INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS", "NO_INDEX", "TRUSTED_HOST", "CERT", "PROXY"),
        *("CLIENT_CERT", "TIMEOUT", "RETRIES", "CACHE_DIR", "NO_CACHE_DIR", "KEYRING_PROVIDER", "ONLY_BINARY"),
        *("NO_BINARY", "PREFER_BINARY", "USE_FEATURE", "USE_DEPRECATED"),
    )
)
#: Not passed to pip: the package paths of another interpreter, and our own settings, some of which are secret.
_NOT_FOR_PIP = ("PIP_", "PYOCO_", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONINSPECT")


class Pip:
    """`<this Python> -m pip install`. Raises WheelSyncFailed with the last line of pip's output."""

    def __init__(self, timeout_seconds: float, index: str) -> None:
        """`index`: `none`, `default` or a URL, as in PYOCO_WHEEL_INDEX."""
        self._timeout_seconds, self._index = timeout_seconds, index
        self._slots = asyncio.Semaphore(min(4, os.cpu_count() or 1))

    @property
    def has_index(self) -> bool:
        return self._index != "none"

    async def install_file(self, file: Path, target: Path) -> None:
        """Install one wheel file into a directory, without requirements and without an index."""
        options = ["--no-deps", "--no-index", "--no-cache-dir", "--only-binary", ":all:", "--target", str(target)]
        await self._run([*options, str(file)], {"PIP_CONFIG_FILE": os.devnull}, target.parent)

    async def resolve(self, requirements: Iterable[str], limits: Iterable[str], wheels: Path, place: Path) -> list[str]:
        """Return the packages to download in addition to what this interpreter has, each as `name==version`.

        `limits` are pinned versions, `wheels` a directory that contains some of them as files.
        """
        report = place / "report.json"
        asked = ["--requirement", await file_work(_write, place / "requirements.txt", requirements)]
        limits_file = await file_work(_write, place / "constraints.txt", limits)
        limited = ["--constraint", limits_file, "--find-links", str(wheels)]
        await self._run(["--dry-run", "--report", str(report), *limited, *asked], self._index_settings(), place)
        try:
            found = [item["metadata"] for item in json.loads(await file_work(report.read_bytes))["install"]]
            return [f"{canonicalize_name(item['name'])}=={item['version']}" for item in found]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise WheelSyncFailed(f"what pip reports cannot be read: {error!r}") from error

    async def install_pinned(self, pins: Iterable[str], target: Path, place: Path) -> None:
        """Install exactly these packages from the index into a directory."""
        asked = ["--requirement", await file_work(_write, place / "pins.txt", pins)]
        await self._run(["--no-deps", "--target", str(target), *asked], self._index_settings(), place)

    def _index_settings(self) -> dict[str, str]:
        """Return the index settings as environment variables: a URL may contain a password, and command lines are
        public."""
        if self._index == "default":  # PIP_USER: a setting of the user's that conflicts with --target
            return {name: os.environ[name] for name in _NETWORK & os.environ.keys()} | {"PIP_USER": "0"}
        return {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": self._index}

    async def _run(self, arguments: list[str], settings: Mapping[str, str], place: Path) -> None:
        command = [sys.executable, "-P", "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
        environment = {name: text for name, text in os.environ.items() if not name.startswith(_NOT_FOR_PIP)}
        environment |= {"PYTHONUTF8": "1", "TMPDIR": str(place), **settings}
        async with self._slots:
            try:
                process = await _spawn([*command, "--no-warn-script-location", *arguments], environment, place)
            except OSError as error:
                raise WheelSyncFailed(f"pip could not be started: {error}") from error
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    output = await _tail_of(process)
                    status = await process.wait()
            except TimeoutError:
                limit = f"{self._timeout_seconds:g} s (PYOCO_WHEEL_INSTALL_TIMEOUT_SEC)"
                raise WheelSyncFailed(f"pip did not end within {limit}, and was stopped") from None
            finally:
                await _kill(process)
        if status != 0:
            raise WheelSyncFailed(self._reason(output, status))

    def _reason(self, output: str, status: int) -> str:
        """Return the reason of a failure from pip's output, with the credentials of URLs removed."""
        if "No module named pip" in output:
            return f"this worker's Python has no pip; install it: {sys.executable} -m ensurepip"
        if self._index not in ("none", "default"):  # these are keywords, not URLs
            output = output.replace(self._index, "the index")
        lines = [line.strip() for line in _USERINFO.sub("://***@", output).splitlines() if line.strip()]
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        if not errors or errors[-1] == "Exception:":  # pip crashed: the last line of the traceback has the reason
            errors = lines[-1:]
        if not errors:
            return f"pip ended with status {status} and said nothing"
        return f"pip: {'; '.join(errors)}"[:_ERROR_CHARACTERS_MAX]


def _write(file: Path, lines: Iterable[str]) -> str:
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(file)


async def _spawn(command: list[str], environment: Mapping[str, str], place: Path) -> asyncio.subprocess.Process:
    spawning = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment,
            cwd=place,
            start_new_session=True,
            preexec_fn=die_with(os.getpid(), signal.SIGKILL),
        )
    )
    try:
        return await asyncio.shield(spawning)
    except asyncio.CancelledError:  # wait for the process to exist, or it would be left running
        with contextlib.suppress(OSError):
            await _kill(await spawning)
        raise


async def _tail_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    tail = b""
    while data := await process.stdout.read(65536):
        tail = (tail + data)[-_TAIL_BYTES:]
    return tail.decode(errors="replace")


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill what is left of its process group. Returns once no process of the group can write to the work directory."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    for _ in range(_GROUP_LOOKS_MAX):
        if _is_group_gone(process.pid):
            return
        await asyncio.sleep(_GROUP_LOOK_SECONDS)


def _is_group_gone(group: int) -> bool:
    """Return whether the group has exited. Signal 0 is harmless even if the number now belongs to another group."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return True
    return False
