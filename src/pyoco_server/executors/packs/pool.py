"""Maps packs to processes. Built-in packs share a group with one process per slot and a spare, so that losing one does
not delay a run by a start-up. Heavy and third-party packs have processes of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import asdict

from pyoco_server.config.packs import PackConfig
from pyoco_server.core.packs.spec import PackSpec
from pyoco_server.errors import UsageError
from pyoco_server.executors.capture.port import Collector
from pyoco_server.executors.host.warm_pool import Size, WarmPool
from pyoco_server.executors.packs.host import PackExecution, PackHost
from pyoco_server.executors.packs.port import Call
from pyoco_server.executors.packs.wire import Greeting
from pyoco_server.executors.strays.marks import end_abandoned
from pyoco_server.logs import get_logger

__all__ = ["PackHosts"]

log = get_logger(__name__)

_SPARE_PROCESSES = 1
#: Maximum start time of a pack's own process. A run that was started does not wait longer for one either.
_OWN_READY_SECONDS = 60.0


_Group = WarmPool[Greeting, PackHost]


class _HostProcess:
    """Reserves a process of the shared group, which most calls need, until the pack is known."""

    def __init__(self, hosts: PackHosts, group: _Group | None, host: PackHost | None) -> None:
        self._hosts, self._group, self._host = hosts, group, host
        self._execution: PackExecution | None = None
        self._is_left = self._is_over = False

    async def begin(self, call: Call) -> PackExecution:
        assert self._execution is None
        assert not self._is_left
        group = self._hosts.group_of(call.pack_type)
        if group is not self._group:
            self._release_process()
            self._group = group
        while self._host is None or not self._host.is_alive:
            self._release_process()
            self._host = await group.take()
        self._execution = PackExecution(self._host, call, self._over)
        return self._execution

    def _over(self) -> None:
        self._is_over = True
        if self._is_left:
            self._release_process()

    def leave(self) -> None:
        if self._is_left:
            return
        self._is_left = True
        if self._execution is None or self._is_over:
            self._release_process()
        else:
            self._execution.kill()

    def _release_process(self) -> None:
        host, self._host = self._host, None
        if self._group is not None and host is not None:
            self._group.take_back(host)


class PackHosts:
    """Executes packs in child processes."""

    def __init__(
        self,
        slots: int,
        memory_bytes_max: int,
        specs: Iterable[PackSpec],
        config: PackConfig,
        loader: str,
        collector: Collector | None = None,
    ) -> None:
        """`memory_bytes_max` applies to each process; 0: no limit. `loader`: the `module:function` that a process calls
        with its packs and the settings to get their executors. `collector` gets what packs print; None: it is
        discarded."""
        specs = tuple(specs)
        ours, plain = [spec for spec in specs if not spec.has_own_process], asdict(config)

        def greeting(packs: list[PackSpec]) -> Greeting:
            # Third-party packs receive none of our settings, which include keys.
            settings = {} if any(spec.executor for spec in packs) else plain
            return Greeting(loader, {spec.name: spec.executor for spec in packs}, settings, memory_bytes_max)

        shared = Size(least=slots + _SPARE_PROCESSES, most=slots + _SPARE_PROCESSES)
        own = Size(least=1, most=slots, ready_seconds=_OWN_READY_SECONDS)
        self._shared = _group(greeting(ours), shared, collector) if ours else None
        self._own = {spec.name: _group(greeting([spec]), own, collector) for spec in specs if spec.has_own_process}
        self._gate = asyncio.Lock()
        self._is_running = False
        self._by_pack: dict[str, _Group] = {}
        self._left_out: dict[str, str] = {}

    @property
    def left_out(self) -> Mapping[str, str]:
        """Packs that could not be loaded, and why; known after `start`."""
        return self._left_out

    @property
    def restarts(self) -> int:
        return sum(group.restarts for group in self._groups())

    @property
    def packs(self) -> frozenset[str]:
        return frozenset(self._by_pack)

    def _groups(self) -> list[_Group]:
        return [*([] if self._shared is None else [self._shared]), *self._own.values()]

    async def start(self) -> None:
        """Start all groups concurrently. A pack with its own processes that cannot be loaded is left out and logged."""
        async with self._gate:
            if self._is_running:
                return
            self._is_running = True
            try:
                await self._start()
            except BaseException:
                await self._stop()
                raise

    async def _start(self) -> None:
        await asyncio.to_thread(end_abandoned)
        groups = self._groups()
        started = await asyncio.gather(*(_started(group) for group in groups))
        self._by_pack, self._left_out = {}, {}
        for group, error in zip(groups, started, strict=True):
            if error is None:
                self._by_pack.update(dict.fromkeys(group.settings.packs, group))
            elif group is self._shared:
                raise UsageError(str(error)) from error
            else:
                log.error("a pack cannot be loaded; leaving it out", packs=sorted(group.settings.packs), error=error)
                self._left_out |= dict.fromkeys(group.settings.packs, "its code cannot be loaded by the worker")

    async def stop(self) -> None:
        async with self._gate:
            await self._stop()

    async def _stop(self) -> None:
        self._is_running = False
        await asyncio.gather(*(group.stop() for group in self._groups()))

    async def reserve_process(self) -> _HostProcess:
        host = None if self._shared is None else await self._shared.take()
        return _HostProcess(self, self._shared, host)

    def group_of(self, pack_type: str) -> _Group:
        return self._by_pack[pack_type]


def _group(greeting: Greeting, size: Size, collector: Collector | None) -> _Group:
    return WarmPool(PackHost, greeting, size, name=f"packs {', '.join(sorted(greeting.packs))}", collector=collector)


async def _started(group: _Group) -> Exception | None:
    """Start a group and return the error, if any. Never raises: that would abandon the concurrent starts of other
    groups."""
    try:
        await group.start()
    except Exception as error:  # noqa: BLE001  (the caller reports it)
        return error
    return None
