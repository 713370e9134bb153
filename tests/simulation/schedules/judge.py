"""What must hold for schedules: one run for each tick that is to have one, and every tick accounted for once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from pyoco_server.core.run import Run
from pyoco_server.core.schedules.history import newest_chunks, slot_of
from pyoco_server.core.schedules.ids import tick_id, trigger_id
from pyoco_server.core.schedules.progress import ticks_between
from pyoco_server.core.schedules.record import CatchUp, Entry, Overlap, Schedule
from pyoco_server.core.snapshot import read_snapshot
from pyoco_server.core.states import RunState
from pyoco_server.ports.nats.memory.messages import Message
from pyoco_server.ports.nats.memory.stream import Stream
from pyoco_server.ports.schedules.jetstream import read_chunk, read_stored
from simulation.kind import Problems
from simulation.loop import SimLoop
from simulation.network import WatchedNats
from simulation.virtual_time import EPOCH

__all__ = ["ScheduleJudge"]

_TICKS_MAX = 100_000
#: How far a process may be from the time of the store while its messages are held up.
_CLOCKS_SECONDS = 5.0
_RUNS, _SCHEDULES = "KV_pyoco_runs", "KV_pyoco_schedules"


@dataclass
class _Known:
    """What the judge has seen of one schedule."""

    schedule: Schedule
    first_cursor: int
    #: Runs of its ticks, by their ids.
    runs: dict[str, Run] = field(default_factory=dict)


class ScheduleJudge:
    """Sees every revision of a schedule and of a run."""

    def __init__(self, loop: SimLoop, nats: WatchedNats, problems: Problems, keep: int) -> None:
        self._loop, self._nats, self.blame, self._keep = loop, nats, problems.blame, keep
        self.known: dict[str, _Known] = {}
        #: The runs of keyed triggers that a client was told of.
        self.triggered: dict[str, str] = {}
        nats.on_stream.append(self._on_stream)

    def _on_stream(self, stream: Stream) -> None:
        if stream.name == _RUNS:
            stream.on_stored.append(self._on_run)
        elif stream.name == _SCHEDULES:
            stream.on_stored.append(self._on_schedule)

    def _on_schedule(self, message: Message) -> None:
        key = message.subject.removeprefix("$KV.pyoco_schedules.")
        if not key.startswith("s."):
            return
        schedule = read_stored(message.data)
        facts = {"next": schedule.next_at, "starting": len(schedule.starting), "waiting": len(schedule.waiting)}
        self._loop.record("schedule", name=schedule.name, cursor=schedule.cursor, seq=message.seq, **facts)
        found = self.known.get(schedule.id)
        if found is None:
            self.known[schedule.id] = _Known(schedule, schedule.cursor)
            return
        if schedule.cursor < found.schedule.cursor:
            self.blame(f"the schedule {schedule.name} went back in time")
        found.schedule = schedule

    def _on_run(self, message: Message) -> None:
        if b"KV-Operation" in message.head:
            return
        run = read_snapshot(message.data)
        if run.schedule is None:
            return
        mark = run.schedule
        found = self.known.get(mark["id"])
        if found is None:
            self.blame("a run belongs to a schedule that is not stored", run.run_id)
            return
        if mark["source"] != "trigger" and run.run_id != tick_id(mark["id"], mark["tick"]):
            self.blame("the id of a run does not follow from its tick", run.run_id)
        if run.params != {"at": mark["tick"], "seconds": run.params.get("seconds")} and mark["source"] != "trigger":
            self.blame(f"a run was told another time than its tick: {run.params}", run.run_id)
        if run.status is RunState.RUNNING and run.not_before is not None:
            early = run.not_before - (EPOCH + self._loop.time())
            if early > _CLOCKS_SECONDS:
                self.blame(f"a run began {early:.3f} s before its time", run.run_id)
        found.runs[run.run_id] = run

    def told(self, schedule_id: str, key: str, run_id: str) -> None:
        first = self.triggered.setdefault(f"{schedule_id} {key}", run_id)
        if run_id not in {trigger_id(schedule_id, key)} & {first}:
            self.blame(f"the trigger {key} has the wrong run", run_id)

    @property
    def is_settled(self) -> bool:
        return all(
            not each.schedule.starting and not each.schedule.waiting and each.schedule.is_paused
            for each in self.known.values()
        )

    def conclude(self) -> None:
        for each in self.known.values():
            self._check(each)

    def _check(self, known: _Known) -> None:
        schedule = known.schedule
        if schedule.starting or schedule.waiting:
            self.blame(f"the schedule {schedule.name} has ticks that never started")
        entries = self._entries(schedule)
        self._check_runs(known, entries)
        self._check_ticks(known, entries)

    def _check_runs(self, known: _Known, entries: list[Entry]) -> None:
        """The history names each run of a tick, and no other run."""
        name, noted = known.schedule.name, {entry.run_id for entry in entries}
        for run_id in noted - known.runs.keys() - {None}:
            self.blame(f"the history of {name} names a run that does not exist", str(run_id))
        for run_id, run in known.runs.items():
            if run_id not in noted and (run.schedule or {}).get("source") != "trigger":
                self.blame(f"the history of {name} does not name a run", run_id)

    def _check_ticks(self, known: _Known, entries: list[Entry]) -> None:
        """Each tick has one entry; and one run, where nothing may be skipped."""
        schedule, told = known.schedule, Counter[int]()
        for entry in entries:
            if entry.source in {"trigger", "backfill"}:
                continue
            last = entry.tick if entry.last_tick is None else entry.last_tick
            ticks = ticks_between(schedule.definition, entry.tick, last + 1, _TICKS_MAX)
            if len(ticks) != (entry.count or 1):
                self.blame(f"the history of {schedule.name} counts {entry.count} ticks where there are {len(ticks)}")
            told.update(ticks)
        definition = schedule.definition
        skips_none = definition.overlap is Overlap.ALLOW and definition.catch_up is CatchUp.ALL
        for tick in ticks_between(definition, known.first_cursor + 1, schedule.cursor + 1, _TICKS_MAX):
            if tick > schedule.updated_at:  # paused since then
                break
            if told[tick] != 1:
                self.blame(f"the history of {schedule.name} has {told[tick]} entries for the tick {tick}")
            if skips_none and tick_id(schedule.id, tick) not in known.runs:
                self.blame(f"a tick of {schedule.name} has no run: {tick}")

    def _entries(self, schedule: Schedule) -> list[Entry]:
        entries = list(schedule.tail)
        stream: Any = self._nats.streams[_SCHEDULES]
        for number in newest_chunks(schedule, self._keep):
            subject = f"$KV.pyoco_schedules.h.{schedule.id}.{slot_of(number, self._keep)}"
            message = stream.messages.last(subject)
            chunk = None if message is None else read_chunk(message.data)
            if chunk is None or chunk.number != number:
                self.blame(f"a part of the history of {schedule.name} is missing: {number}")
            else:
                entries += chunk.entries
        return entries
