"""pip, in a process of its own that is bounded in time and dies with the worker (FLOW-236)."""

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

#: How much of what pip says is kept: its end, where the reason stands.
_TAIL_BYTES = 8192
_ERROR_CHARACTERS_MAX = 500
#: The limit is for containers whose init process leaves zombies: they are counted as members of their group.
_GROUP_LOOKS_MAX, _GROUP_LOOK_SECONDS = 200, 0.01
_USERINFO = re.compile(r"://[^\s/\"'<>]*@")
#: What pip may be told by its user's environment when it may use its user's index: how to get there, and no more.
_NETWORK = frozenset(
    f"PIP_{name}"
    for name in (
        *("CONFIG_FILE", "INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS", "NO_INDEX", "TRUSTED_HOST", "CERT", "PROXY"),
        *("CLIENT_CERT", "TIMEOUT", "RETRIES", "CACHE_DIR", "NO_CACHE_DIR", "KEYRING_PROVIDER", "ONLY_BINARY"),
        *("NO_BINARY", "PREFER_BINARY", "USE_FEATURE", "USE_DEPRECATED"),
    )
)
#: Not for pip: where another interpreter's packages are, and our own settings, some of them secret.
_NOT_FOR_PIP = ("PIP_", "PYOCO_", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONINSPECT")


class Pip:
    """`<this Python> -m pip install`. Raises WheelSyncFailed with pip's own last words."""

    def __init__(self, timeout_seconds: float, index: str) -> None:
        """`index`: `none`, `default` or an address, as PYOCO_WHEEL_INDEX."""
        self._timeout_seconds, self._index = timeout_seconds, index
        self._slots = asyncio.Semaphore(min(4, os.cpu_count() or 1))

    @property
    def has_index(self) -> bool:
        return self._index != "none"

    async def install_file(self, file: Path, target: Path) -> None:
        """One wheel file into one directory: nothing else, from nowhere else."""
        options = ["--no-deps", "--no-index", "--no-cache-dir", "--only-binary", ":all:", "--target", str(target)]
        await self._run([*options, str(file)], {"PIP_CONFIG_FILE": os.devnull}, target.parent)

    async def resolve(self, requirements: Iterable[str], limits: Iterable[str], wheels: Path, place: Path) -> list[str]:
        """What has to be fetched to meet these requirements beside what this interpreter has, each as `name==version`.

        `limits` are the versions that are fixed, `wheels` a directory where some of them lie as files.
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
        """Exactly these packages from the index into one directory."""
        asked = ["--requirement", await file_work(_write, place / "pins.txt", pins)]
        await self._run(["--no-deps", "--target", str(target), *asked], self._index_settings(), place)

    def _index_settings(self) -> dict[str, str]:
        """By environment: an address may hold a password, and a command line is for everyone to read."""
        if self._index == "default":  # PIP_USER: a setting of the user's that does not go with a target
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
                    said = await _tail_of(process)
                    status = await process.wait()
            except TimeoutError:
                limit = f"{self._timeout_seconds:g} s (PYOCO_WHEEL_INSTALL_TIMEOUT_SEC)"
                raise WheelSyncFailed(f"pip did not end within {limit}, and was stopped") from None
            finally:
                await _kill(process)
        if status != 0:
            raise WheelSyncFailed(self._reason(said, status))

    def _reason(self, said: str, status: int) -> str:
        """Why pip failed, in its own words, without the secrets of an address."""
        if "No module named pip" in said:
            return f"this worker's Python has no pip; install it: {sys.executable} -m ensurepip"
        if self._index not in ("none", "default"):  # words, and no address
            said = said.replace(self._index, "the index")
        lines = [line.strip() for line in _USERINFO.sub("://***@", said).splitlines() if line.strip()]
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        if not errors or errors[-1] == "Exception:":  # it fell over: the last line of the traceback says why
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
    except asyncio.CancelledError:  # not half-way: nobody would know of the process
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
    """End what is left of its process group. Returns when no process of the group can write to the workplace."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    for _ in range(_GROUP_LOOKS_MAX):
        if _is_group_gone(process.pid):
            return
        await asyncio.sleep(_GROUP_LOOK_SECONDS)


def _is_group_gone(group: int) -> bool:
    """Signal 0 does no harm if the number belongs to another group by now."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return True
    return False
