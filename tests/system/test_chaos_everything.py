"""`pyoco-server up` while everything it has started is killed -9 at random: it recovers without help."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import psutil

from pyoco_server.config import NatsBackendConfig
from support.chaos import RECOVERY_SECONDS, Process, environment, free_port, impatient, is_ready, open_eyes
from support.promises import History, Load, check_recovery, judge, loaded
from support.waiting import eventually

STORM_SECONDS = 8.0
#: Which child by which words of its command line. It gives up on a child that dies five times within 30 s.
VICTIMS = {"gateway": "cli.server gateway", "worker": "cli.worker", "keeper": "cli.keeper", "nats": "nats-server"}
DEATHS_MAX = 3
COMMAND = Path(sys.executable).parent / "pyoco-server"


class Up:
    """One `pyoco-server up`: NATS, gateway, keeper and two workers."""

    def __init__(self, folder: Path) -> None:
        self._port = free_port()
        url = f"nats://127.0.0.1:{self._port}"
        self.config = impatient(NatsBackendConfig(nats_url=url, data_dir=str(folder / "data")))
        settings = environment(self.config)
        del settings["PYOCO_NATS_URL"]  # it is to start its own
        options = f"--port 0 --nats-client-port {self._port} --workers 2 --slots 2"
        options += " --flow-resolver support.chaos_flows:resolve"
        self.process = Process("up", [COMMAND, "up", *options.split()], settings, folder)
        self.address = ""

    async def start(self) -> None:
        self.process.start()
        await eventually(self._is_up, RECOVERY_SECONDS)
        found = re.search(r"API +(\S+)", self.process.output.read_text())
        assert found is not None
        self.address = found[1]

    def _is_up(self) -> bool:
        assert self.process.is_alive, self.process.last_words
        return self.process.has_said("Ctrl-C stops everything.")

    def children(self, words: str) -> list[psutil.Process]:
        """Its direct children whose command line holds these words."""
        found = []
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.Error):  # it is just ending
                if words in " ".join(child.cmdline()):
                    found.append(child)
        return found

    async def is_whole(self) -> bool:
        """Whether all of them are there again."""
        there = {name: len(self.children(words)) for name, words in VICTIMS.items()}
        return there == {"gateway": 1, "worker": 2, "keeper": 1, "nats": 1} and await is_ready(self.address)

    def kill(self) -> None:
        family = psutil.Process(self.process.pid).children(recursive=True) if self.process.is_alive else []
        self.process.end()
        for child in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(family, timeout=60)


@contextlib.asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Up]:
    up = Up(folder)
    try:
        await up.start()
        yield up
    finally:
        up.kill()


async def storm(up: Up, chance: random.Random) -> Counter[str]:
    """Kill one after the other, whatever stands in the way of the dice. Returns who was killed how often."""
    killed: Counter[str] = Counter()
    until = time.monotonic() + STORM_SECONDS
    while time.monotonic() < until:
        name = chance.choice([name for name in VICTIMS if killed[name] < DEATHS_MAX])
        there = up.children(VICTIMS[name])
        if there:
            with contextlib.suppress(psutil.NoSuchProcess):
                chance.choice(there).kill()
                killed[name] += 1
        if sum(killed.values()) == DEATHS_MAX * len(VICTIMS):
            return killed
        await asyncio.sleep(chance.uniform(0.1, 1.2))
    return killed


async def test_no_promise_is_broken_when_everything_is_killed_at_random(tmp_path: Path) -> None:
    """FLOW-18, FLOW-19, FLOW-73, FLOW-76, FLOW-308, DESIGN 6. Set CHAOS_SEED to see a storm again."""
    seed = int(os.environ.get("CHAOS_SEED") or random.randrange(1_000_000))
    print(f"CHAOS_SEED={seed}")  # pytest shows it when this fails
    async with running(tmp_path) as up, open_eyes(up.config) as eyes, History(eyes) as history:
        load = Load(up.address, tmp_path / "note", seconds=(0.0, 0.4), pause=0.15, cancel_every=9, seed=seed)
        async with loaded(load):
            killed = await storm(up, random.Random(seed))
            await load.until(20)
        print(dict(killed))
        await judge(eyes, load, history, whole_history=False)
        await eventually(up.is_whole, RECOVERY_SECONDS)
        await check_recovery(up.address, load.note)
        assert up.process.is_alive
