"""A stream of NATS that cannot write any more, as after a full disk, without filling one."""

from __future__ import annotations

from pathlib import Path

from pyoco_server.errors import NoRoom, Unavailable
from pyoco_server.ports.nats.link import Link, Patience, open_link

__all__ = ["jam"]

_TRIES = 20


async def jam(url: str, store_dir: Path, stream: str, subject: str) -> None:
    """Returns once NATS has failed to write to this stream of its own. From then on it answers no write there until it
    is restarted, though nothing is in its way any more: so it does when a disk was full (measured with 2.15.1).

    Something lies where the second file of messages would be made, and is taken away again. What fills the first one is
    a deletion marker, so that nobody takes it for a record.
    """
    obstacle = store_dir / "jetstream" / "$G" / "streams" / stream / "msgs" / "2.blk"
    obstacle.mkdir()
    link = await open_link(url, "tests that fill", Patience(answer_seconds=1.0))
    try:
        for _ in range(_TRIES):
            if await _is_jammed(link, subject):
                return
    finally:
        await link.close()
        obstacle.rmdir()
    raise AssertionError(f"{stream} took {_TRIES} MB")


async def _is_jammed(link: Link, subject: str) -> bool:
    """After one more megabyte. One that was merely not answered in time is stored or not: the machine is busy."""
    try:
        await link.store(subject, bytes(1_000_000), {"KV-Operation": "DEL"})
    except NoRoom:
        return True
    except Unavailable:
        return False
    return False
