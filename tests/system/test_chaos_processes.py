"""A gateway is killed -9 in a burst, workers in a loop, keepers in the middle of their duty."""

from __future__ import annotations

from pathlib import Path

from pyoco_server.core.states import RunState
from support.backends import a_submission, dead_letters, recorded
from support.chaos import RECOVERY_SECONDS, Deployment, Process, deployed
from support.promises import History, Load, check_recovery, judge, loaded
from support.servers import NatsServer
from support.waiting import eventually


async def test_no_promise_is_broken_when_the_gateway_is_killed_in_a_burst(
    own_nats_server: NatsServer, tmp_path: Path
) -> None:
    """FLOW-19, FLOW-73, FLOW-76: on the same port and data directory, and what it had begun is ended by the keeper."""
    async with deployed(own_nats_server, tmp_path, abandon_after_sec=3.0) as system, History(system.eyes) as history:
        load = Load(system.address, tmp_path / "note", seconds=(0.0, 0.1), cancel_every=7, pause=0.0)
        async with loaded(load, clients=24):
            for _ in range(4):
                await load.until(50)
                await system.hold_nats()
                await system.gateway.restart()
            await load.until(50)
        verdict = await judge(system.eyes, load, history)
        assert load.unanswered  # otherwise nobody has noticed
        assert not load.refused
        assert max(verdict.begun.values()) == 1
        await system.ready()
        await check_recovery(system.address, load.note)


async def test_no_promise_is_broken_when_workers_are_killed_in_a_loop(
    own_nats_server: NatsServer, tmp_path: Path
) -> None:
    """FLOW-18, FLOW-19, FLOW-199, FLOW-308"""
    async with deployed(own_nats_server, tmp_path) as system, History(system.eyes) as history:
        load = Load(system.address, tmp_path / "note", seconds=(0.1, 0.5), pause=0.3, cancel_every=9)
        await load.pile(4, seconds=4.0, running=4)  # so that the first kill hits something, also on a busy machine
        await system.workers[0].restart()
        async with loaded(load):
            for worker in system.workers * 3:
                await load.until(8)
                await eventually(lambda worker=worker: _works(history, worker), RECOVERY_SECONDS)  # type: ignore[misc]
                await worker.restart()
            await load.until(8)
        verdict = await judge(system.eyes, load, history)
        assert not load.refused
        assert not load.unanswered
        assert max(verdict.begun.values()) > 1  # otherwise no kill has hit anything
        await system.ready()
        await check_recovery(system.address, load.note)


def _works(history: History, worker: Process) -> bool:
    newest = [states[-1] for states in history.seen.values()]
    return any(run.status is RunState.RUNNING and run.worker_id == worker.name for run in newest)


async def test_what_nobody_would_ever_take_is_ended_once_though_keepers_are_killed(
    own_nats_server: NatsServer, tmp_path: Path
) -> None:
    """FLOW-19, FLOW-76: orphans of submissions that were cut short, and a load that must not be touched"""
    async with deployed(own_nats_server, tmp_path, abandon_after_sec=2.5) as system, History(system.eyes) as history:
        load = Load(system.address, tmp_path / "note", seconds=(0.0, 0.2), pause=0.3, cancel_every=9)
        await load.pile(20, seconds=1.0)  # some wait for longer than an orphan is left alone
        async with loaded(load):
            orphans = await _orphans(system, history)
        verdict = await judge(system.eyes, load, history)
        assert not load.refused
        assert not load.unanswered
        assert max(verdict.begun.values()) == 1
        for run_id in orphans:
            end = history.seen[run_id][-1]
            assert (end.status, end.reason, end.attempt) == (RunState.FAILED, "abandoned", 0)
        letters = [letter["body"]["run_id"] for letter in await dead_letters(system.eyes.link, system.config)]
        assert set(letters) <= set(orphans)  # a keeper that was killed may have left one unwritten
        await system.ready()
        await check_recovery(system.address, load.note)


async def _orphans(system: Deployment, history: History) -> list[str]:
    """Records without a job, made while the keeper is killed as soon as it has ended some of them."""
    orphans: list[str] = []
    for _ in range(2):
        ask = a_submission(tag="lonely")
        made = {(await recorded(system.eyes.backend, ask))[0].run.run_id for _ in range(15)}
        orphans += made
        await eventually(lambda made=made: made & _ended(history), RECOVERY_SECONDS)  # type: ignore[misc]
        await system.keeper.restart()
    return orphans


def _ended(history: History) -> set[str]:
    return {run_id for run_id, states in history.seen.items() if states[-1].is_terminal}
