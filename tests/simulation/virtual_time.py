"""Virtual clocks and seeded randomness: replaces functions of `time`, `os`, `uuid`, `secrets` and `random`.

The replacements are installed in the standard library's modules and wherever code of the given packages has bound the
originals (`from time import sleep`, `clock=time.monotonic` as a default). A module imported during a simulation
keeps the replacements it bound; outside of a simulation and in other threads they call the originals.

`datetime.now()` reads the clock in C; `_DATETIME_USERS` lists the modules in which the class is replaced.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, tzinfo
from types import ModuleType
from typing import Any

from simulation.bindings import Binding, find_bindings
from simulation.loop import START_SECONDS, SimLoop

__all__ = ["EPOCH", "virtual_world"]

#: `time.time()` is this plus `loop.time()` plus the skew of the process: simulations start at 2026-01-01 00:00 UTC.
EPOCH = 1_767_225_600.0 - START_SECONDS

#: Packages whose bindings are replaced.
_PACKAGES = ("pyoco_server", "nats")
#: Modules that call `datetime.now`. Not replaced elsewhere: msgspec rejects subclasses of datetime in annotations.
_DATETIME_USERS = (
    "pyoco_server.ports.objects.meta",
    "pyoco_server.executors.packs.url",
    "nats.js.object_store",
)
#: 100 ns intervals between the UUID epoch (1582-10-15) and 1970-01-01.
_UUID_EPOCH_TICKS = 0x01B21DD213814000


class _World:
    def __init__(self, loop: SimLoop, seed: int | str) -> None:
        self.loop = loop
        self.thread = threading.get_ident()
        self.random = random.Random(f"{seed}/world")

    def wall(self) -> float:
        return EPOCH + self.loop.time() + self.loop.current().skew_seconds

    def draw(self, size: int) -> bytes:
        return self.random.randbytes(size)


_world: _World | None = None


def _here() -> _World | None:
    """The simulation of this thread."""
    world = _world
    return world if world is not None and world.thread == threading.get_ident() else None


_REPLACEMENTS: dict[tuple[ModuleType, str], Callable[..., Any]] = {}


def _replaces(module: ModuleType, name: str) -> Callable[[Callable[..., Any]], None]:
    """Register a replacement, which gets the world as first argument. Without a world the original is called."""
    original: Callable[..., Any] = getattr(module, name)

    def decorate(simulated: Callable[..., Any]) -> None:
        def replacement(*args: Any, **kwargs: Any) -> Any:
            world = _here()
            return original(*args, **kwargs) if world is None else simulated(world, *args, **kwargs)

        replacement.__name__ = replacement.__qualname__ = name
        _REPLACEMENTS[module, name] = replacement

    return decorate


for _name in ("monotonic", "perf_counter", "process_time", "thread_time"):
    _replaces(time, _name)(lambda world: world.loop.time())
    _replaces(time, f"{_name}_ns")(lambda world: round(world.loop.time() * 1e9))
_replaces(time, "time")(_World.wall)
_replaces(time, "time_ns")(lambda world: round(world.wall() * 1e9))
_replaces(time, "sleep")(lambda world, seconds: world.loop.advance(seconds))


def _clock(world: _World, clock: int) -> float:
    return world.wall() if clock == time.CLOCK_REALTIME else world.loop.time()


_replaces(time, "clock_gettime")(_clock)
_replaces(time, "clock_gettime_ns")(lambda world, clock: round(_clock(world, clock) * 1e9))

# These read the clock if called without a time.
_gmtime, _localtime, _ctime, _asctime, _strftime = time.gmtime, time.localtime, time.ctime, time.asctime, time.strftime
_replaces(time, "gmtime")(lambda world, seconds=None: _gmtime(world.wall() if seconds is None else seconds))
_replaces(time, "localtime")(lambda world, seconds=None: _localtime(world.wall() if seconds is None else seconds))
_replaces(time, "ctime")(lambda world, seconds=None: _ctime(world.wall() if seconds is None else seconds))
_replaces(time, "asctime")(lambda world, parts=None: _asctime(_localtime(world.wall()) if parts is None else parts))
_replaces(time, "strftime")(
    lambda world, form, parts=None: _strftime(form, _localtime(world.wall()) if parts is None else parts)
)

# uuid.uuid4, secrets and random.SystemRandom draw from these.
_replaces(os, "urandom")(_World.draw)
_replaces(random, "_urandom")(_World.draw)
if hasattr(os, "getrandom"):
    _replaces(os, "getrandom")(lambda world, size, flags=0: world.draw(size))


@_replaces(uuid, "uuid1")
def _uuid1(world: _World, node: int | None = None, clock_seq: int | None = None) -> uuid.UUID:
    """Uses neither the MAC address of this machine nor the last timestamp, which the uuid module keeps."""
    ticks = round(world.wall() * 1e7) + _UUID_EPOCH_TICKS
    sequence = world.random.getrandbits(14) if clock_seq is None else clock_seq
    node = world.random.getrandbits(48) | (1 << 40) if node is None else node
    return uuid.UUID(
        fields=(ticks & 0xFFFFFFFF, ticks >> 32 & 0xFFFF, ticks >> 48 & 0x0FFF, sequence >> 8, sequence & 0xFF, node),
        version=1,
    )


class _DatetimeType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, datetime)


class _VirtualDatetime(datetime, metaclass=_DatetimeType):
    """Constructs plain datetimes; only the methods that read the clock differ."""

    def __new__(cls, *args: Any, **kwargs: Any) -> datetime:  # type: ignore[misc]
        return datetime(*args, **kwargs)  # noqa: DTZ001  (passes the arguments on)

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls) -> datetime:  # type: ignore[override]
        return datetime(*time.gmtime()[:6])  # noqa: DTZ001  (that is what utcnow gives)


_original_seed = random.Random.seed


def _seed(self: random.Random, a: Any = None, version: int = 2) -> None:
    """`random.Random()` would read its seed from the operating system, in C."""
    world = _here()
    _original_seed(self, world.draw(32) if a is None and world is not None else a, version)


def _bindings() -> list[Binding]:
    """Every place where an original must be replaced."""
    originals = {id(getattr(module, name)): replacement for (module, name), replacement in _REPLACEMENTS.items()}
    found = [Binding(module, name, replacement) for (module, name), replacement in _REPLACEMENTS.items()]
    found += find_bindings(_PACKAGES, originals)
    for name in _DATETIME_USERS:
        module = sys.modules.get(name)
        if module is not None and vars(module).get("datetime") is datetime:
            found.append(Binding(module, "datetime", _VirtualDatetime))
    found.append(Binding(random.Random, "seed", _seed))
    found.append(Binding(random, "seed", _seed.__get__(random._inst)))
    # tempfile caches a generator that was seeded before the simulation or by an earlier one.
    found.append(Binding(tempfile, "_name_sequence", None))
    return found


@contextlib.contextmanager
def virtual_world(loop: SimLoop, seed: int | str) -> Iterator[None]:
    """Make clocks follow the loop and randomness follow the seed. Restores everything at exit. Not reentrant."""
    global _world  # noqa: PLW0603  (the replaced functions are global, too)
    if _world is not None:
        raise RuntimeError("a simulation is running already")
    assert isinstance(secrets._sysrand, random.SystemRandom)  # type: ignore[attr-defined]  # uses random._urandom
    bindings, random_state = _bindings(), random.getstate()
    with contextlib.ExitStack() as restoring:
        restoring.callback(random.setstate, random_state)
        for binding in bindings:
            binding.replace()
            restoring.callback(binding.restore)
        _world = _World(loop, seed)
        random.seed(f"{seed}/global")
        try:
            yield
        finally:
            _world = None
