"""What `pyoco-server up` does when the disk of its NATS runs full, and has room again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from pyoco_server.doors.cli import disk_watch
from pyoco_server.doors.cli.disk_watch import DiskWatch

MB = 1024 * 1024


class Disk:
    """A disk, a gateway and a NATS, as the watch meets them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free, self.is_stuck, self.now = 1000 * MB, False, 5000.0
        self.restarts = 0
        self.said: list[str] = []
        monkeypatch.setattr(disk_watch, "_free_bytes", lambda _: self.free)
        # Its own clock alone: other threads of this process have loops, which go by the real one.
        monkeypatch.setattr(disk_watch, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.watch = DiskWatch(Path("data"), self._is_stuck, self._restart, self.said.append)

    async def _is_stuck(self) -> bool:
        return self.is_stuck

    async def _restart(self) -> None:
        self.restarts += 1

    async def look(self, times: int = 1, seconds: float = 3.0) -> None:
        for _ in range(times):
            self.now += seconds
            await self.watch.look()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


async def test_a_disk_with_room_is_nobodys_business(disk: Disk) -> None:
    await disk.look(100)
    disk.free = 30 * MB
    await disk.look(100)
    assert (disk.restarts, disk.said) == (0, [])


async def test_a_full_disk_is_told_once_and_nats_is_restarted_when_there_is_room(disk: Disk) -> None:
    """Also without submissions, so that the gateway does not know."""
    disk.free = 4096
    await disk.look(10)
    assert disk.restarts == 0
    assert disk.said == ["the disk of data is full: nothing can be stored. Free at least 64 MiB."]
    disk.free = 60 * MB
    await disk.look(10)
    assert disk.restarts == 0
    disk.free = 65 * MB
    await disk.look(10)
    assert disk.restarts == 1
    assert disk.said[1:] == ["the disk has free space again: restarting NATS, which stores nothing until then."]


async def test_a_disk_that_was_full_for_a_moment_is_known_from_the_gateway(disk: Disk) -> None:
    disk.is_stuck = True
    await disk.look()
    assert disk.restarts == 0  # it may have been a moment of overload
    await disk.look()
    assert disk.restarts == 1
    disk.is_stuck = False
    await disk.look(100)
    assert disk.restarts == 1


async def test_little_room_is_not_enough_for_a_restart(disk: Disk) -> None:
    disk.is_stuck, disk.free = True, 20 * MB
    await disk.look(100)
    assert (disk.restarts, len(disk.said)) == (0, 1)


async def test_restarts_that_do_not_help_become_rare(disk: Disk) -> None:
    """A quota, say: the disk has room, and NATS may not use it."""
    disk.is_stuck = True
    await disk.look(22)  # a minute
    assert disk.restarts == 2
    await disk.look(20 * 60 - 22)  # an hour in all
    assert 4 <= disk.restarts <= 7
    disk.is_stuck = False
    await disk.look(3 * 3600)
    disk.is_stuck = True
    before = disk.restarts
    await disk.look(2)
    assert disk.restarts == before + 1


def test_the_free_bytes_of_a_disk_are_those_we_may_use(tmp_path: Path) -> None:
    assert disk_watch._free_bytes(tmp_path) > 0
    with pytest.raises(FileNotFoundError):
        disk_watch._free_bytes(tmp_path / "none")
