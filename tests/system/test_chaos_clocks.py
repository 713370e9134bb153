"""Clocks jump by an hour, forwards and back, under load. No run may be lost, ended wrongly or executed twice."""

from __future__ import annotations

from pathlib import Path

from support.chaos import deployed
from support.promises import History, Load, check_recovery, judge, loaded
from support.servers import NatsServer

HOUR = 3600.0


async def test_nothing_is_lost_or_done_twice_when_every_clock_jumps(
    own_nats_server: NatsServer, tmp_path: Path
) -> None:
    """FLOW-209: more than clocks may ever differ"""
    async with deployed(own_nats_server, tmp_path, abandon_after_sec=2.0) as system, History(system.eyes) as history:
        load = Load(system.address, tmp_path / "note", seconds=(0.0, 1.5), pause=0.5, cancel_every=9)
        async with loaded(load):
            for seconds in (HOUR, 0.0, -HOUR, 0.0):
                for process in (system.gateway, *system.workers):
                    system.move_clock(process, seconds)
                    await load.until(3)
        # Some that run and some that wait, while the keeper looks for what has been quiet for too long.
        await load.pile(8, seconds=2.5, running=4)
        for seconds in (HOUR, 0.0, -HOUR, 0.0):
            system.move_clock(system.keeper, seconds)
            await system.keeper_turns()
        verdict = await judge(system.eyes, load, history)
        assert max(verdict.begun.values()) == 1
        await system.ready()
        await check_recovery(system.address, load.note)
