"""Small disks that fill up and grow slow: a file system of its own for each NATS node, where this machine allows it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from storm.faults.nodes import may_strike_node, process_named, release_node, take_node
from storm.port import Disk, Site, SiteProcess, Struck

__all__ = ["FullDisk", "SlowDisk", "SmallDisk", "make_disk"]

_FILLER = "filler"
_BLOCK_BYTES = 4096
_CHUNK_BYTES = 2**20
_END_SECONDS = 90.0


def make_disk(name: str, folder: Path, megabytes: int) -> SmallDisk:
    """The best this machine has: an ext4 in a file, which can be filled and slowed down; a tmpfs, which can be filled;
    or a plain folder, to which nothing can happen. `remove` it when nobody needs it any more; if nobody does, it goes
    with this process."""
    path = folder / f"{name}.disk"
    path.mkdir(parents=True, exist_ok=True)
    for kind in ("ext4", "tmpfs") if os.geteuid() == 0 and sys.platform == "linux" else ():
        keeper = _keeper(kind, path, folder / f"{name}.img", megabytes)
        if keeper is not None:
            return SmallDisk(name, path, kind, keeper)
    return SmallDisk(name, path, "", None)


def _keeper(kind: str, path: Path, image: Path, megabytes: int) -> subprocess.Popen[bytes] | None:
    script = Path(__file__).with_name("disk_process.py")
    command = [sys.executable, "-I", str(script), kind, str(path), str(image), str(megabytes)]
    # A session of its own: Ctrl-C is for the storm, which takes its disks away at the end.
    keeper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert keeper.stdout is not None
    if keeper.stdout.readline() == b"ready\n":
        return keeper
    _end(keeper)
    return None


def _end(keeper: subprocess.Popen[bytes]) -> None:
    for pipe in (keeper.stdin, keeper.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    keeper.wait(timeout=_END_SECONDS)


class SmallDisk:
    """A disk of `kind` ext4 or tmpfs, or "": a plain folder."""

    def __init__(self, name: str, path: Path, kind: str, keeper: subprocess.Popen[bytes] | None) -> None:
        self.name, self.path, self.kind, self._keeper = name, path, kind, keeper

    @property
    def can_fill(self) -> bool:
        return self._keeper is not None

    @property
    def can_slow(self) -> bool:
        return self.kind == "ext4"

    def fill(self) -> None:
        """What others free afterwards is theirs to use."""
        assert self.can_fill, f"{self.path} is on somebody else's disk"
        for size in (_CHUNK_BYTES, _BLOCK_BYTES, 1):
            with (
                contextlib.suppress(OSError),
                (self.path / _FILLER).open("ab", buffering=0) as file,
            ):
                while file.write(bytes(size)) == size:
                    pass

    def slow(self, seconds: float) -> None:
        """Nearly every write is delayed by up to this time. Reads are not, and what is only in memory
        is as quick as ever: NATS itself syncs every two minutes, and its writes wait because the file system is frozen,
        not because a sync is slow. Errors of a dying disk are not imitated."""
        assert self.can_slow, f"{self.path} cannot be slowed down"
        self._tell(f"slow {seconds:.3f}\n")

    def heal(self) -> None:
        if self.can_slow:
            self._tell("heal\n")
        if self.can_fill:
            (self.path / _FILLER).unlink(missing_ok=True)

    def _tell(self, line: str) -> None:
        assert self._keeper is not None
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(line.encode())
        self._keeper.stdin.flush()

    def remove(self) -> None:
        """With all that is on it. Processes keep the files that they have open, and nothing else. May be called
        twice."""
        if self._keeper is not None:
            _end(self._keeper)
            self._keeper, self.kind = None, ""
        shutil.rmtree(self.path, ignore_errors=True)


def _disk(site: Site, node: SiteProcess) -> Disk:
    return site.disks[node.name]


def _all(site: Site, able: str) -> bool:
    """Whether every node has a disk of its own name that can do this: the dice choose the node."""
    return bool(site.disks) and all(getattr(disk, able, False) for disk in site.disks.values())


@dataclass
class FullDisk:
    """NATS writes nothing to a stream that once met a full disk until it is restarted, so healing is what an operator
    does: make room, then restart the node."""

    name: str = "disk full"
    lasts: tuple[float, float] = (2.0, 10.0)

    def can_strike(self, site: Site) -> bool:
        return may_strike_node(site) and _all(site, "can_fill")

    async def strike(self, site: Site, dice: random.Random) -> Struck:
        node = take_node(site, dice)
        await asyncio.to_thread(_disk(site, node).fill)
        return Struck(self.name, node.name)

    async def heal(self, site: Site, struck: Struck) -> None:
        node = process_named(site, struck.target)
        await asyncio.to_thread(_disk(site, node).heal)
        if node.name in site.hurt:
            await node.kill()
        if not node.is_alive:
            node.start()
        await release_node(site, node.name)


@dataclass
class SlowDisk:
    name: str = "disk slow"
    lasts: tuple[float, float] = (2.0, 12.0)

    def can_strike(self, site: Site) -> bool:
        return may_strike_node(site) and _all(site, "can_slow")

    async def strike(self, site: Site, dice: random.Random) -> Struck:
        node, seconds = take_node(site, dice), dice.uniform(0.02, 0.5)
        _disk(site, node).slow(seconds)
        return Struck(self.name, node.name, f"{seconds:.2f} s")

    async def heal(self, site: Site, struck: Struck) -> None:
        await asyncio.to_thread(_disk(site, process_named(site, struck.target)).heal)
        await release_node(site, struck.target)
