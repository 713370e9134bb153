"""NATS is killed -9 and comes back on its store, several times, under load."""

from __future__ import annotations

import time
from pathlib import Path

from support.chaos import STALE_SECONDS, deployed
from support.promises import History, Load, check_recovery, judge, loaded
from support.servers import NatsServer

ACK_TIMER = {"consumer_ack_wait_sec": 2.0, "ack_progress_interval_sec": 0.4}


async def test_no_promise_is_broken_when_nats_is_killed_again_and_again(
    own_nats_server: NatsServer, tmp_path: Path
) -> None:
    """FLOW-19, FLOW-73, FLOW-308, FLOW-468, FLOW-563, DESIGN 6: and nobody else has to be started again."""
    async with deployed(own_nats_server, tmp_path, **ACK_TIMER) as system, History(system.eyes) as history:
        pids = [process.pid for process in system.processes]
        load = Load(system.address, tmp_path / "note", seconds=(0.0, 0.1), pause=0.1, cancel_every=5)
        async with loaded(load):
            await load.until(30)
            await system.restart_nats()
            await load.until(30)
            # Longer than an ack timer: what is being executed is delivered once more, to somebody who has room.
            await load.pile(2, seconds=5.0, running=2)
            began = time.monotonic()
            await system.restart_nats(away_seconds=2.5)
            await load.until(1)  # those who use it have found it again
            away_seconds = time.monotonic() - began
            await load.until(30)
            await system.restart_nats()
            await load.until(30)
        verdict = await judge(system.eyes, load, history)
        assert load.unanswered == 0  # the gateway has an answer even then
        assert load.refused  # and it is not always yes
        # An outage of seconds is no reason to do anything twice; only a slow machine can make it longer.
        assert max(verdict.begun.values()) == 1 or away_seconds > STALE_SECONDS - 1.0
        await system.ready()
        await check_recovery(system.address, load.note)
        assert [process.pid for process in system.processes] == pids
