"""What must hold for the slots of a client: as many as its cap, each with one holder, none freed while it is used."""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Any

from pyoco_server.core.programs.moves import program_of
from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState
from pyoco_server.ports.nats.memory.messages import Message
from pyoco_server.ports.nats.memory.stream import Stream

if TYPE_CHECKING:
    from simulation.programs.judge import ProgramJudge

__all__ = ["SlotJudge"]

_SLOTS, _CLIENTS = "KV_pyoco_exec_slots", "KV_pyoco_exec_clients"
#: GRID-74: a slot that names no run is free after this time.
_NAMELESS_SECONDS = 30.0
#: A change of a cap is known everywhere after this, unless a fault delays messages or holds up a process.
_NEWS_SECONDS = 1.0


class SlotJudge:
    def __init__(self, judge: ProgramJudge) -> None:
        self._judge = judge
        #: Value by key, of each slot that is held.
        self.held: dict[str, dict[str, Any]] = {}
        self._caps: dict[str, int] = {}
        #: (when it ended, cap) by client, of the caps before the one in force.
        self._caps_before: dict[str, deque[tuple[float, int]]] = {}
        #: (run, token) of each attempt that had a slot with its name in it.
        self._named: set[tuple[str, str]] = set()

    def on_stream(self, stream: Stream) -> None:
        if stream.name == _SLOTS:
            stream.on_stored.append(self._on_slot)
        elif stream.name == _CLIENTS:
            stream.on_stored.append(self._on_cap)

    def _on_cap(self, message: Message) -> None:
        client = message.subject.split(".", 2)[2]
        cap = json.loads(message.data)["cap"]
        default = self._judge.grid.exec_default_cap
        now = self._judge.deployment.loop.elapsed()
        self._caps_before.setdefault(client, deque()).append((now, self._caps.get(client, default)))
        self._caps[client] = cap
        self._judge.deployment.loop.record("cap", client=client, cap=cap)

    def told(self, client: str, cap: int, since: float) -> None:
        """A client that asked for a cap since then was told that this one is in force (GRID-71)."""
        if cap not in self._cap_since(client, since):
            self._judge.blame(f"{client} was told a cap of {cap}, which is not in force")

    def _cap_since(self, client: str, since: float) -> set[int]:
        """The caps that were in force at some moment since then."""
        now = self._caps.get(client, self._judge.grid.exec_default_cap)
        return {now, *(cap for ended_at, cap in self._caps_before.get(client, ()) if ended_at >= since)}

    def _cap_of(self, client: str) -> int:
        """GRID-72, GRID-76: the cap in force; the largest since the writer last was sure to have heard of all changes,
        if a fault may have kept one from it."""
        return max(
            self._cap_since(client, self._judge.deployment.trouble.uninformed_since(self._judge.writer) - _NEWS_SECONDS)
        )

    def _on_slot(self, message: Message) -> None:
        key = message.subject.split(".", 2)[2]
        old = self.held.get(key)
        if not message.data:
            self._on_free(key, old)
            return
        new = json.loads(message.data)
        self._record("slot", key, new)
        if old is None:
            self._on_take(key, new)
        elif old["holder"] != new["holder"]:
            self._judge.blame(f"slot {key} of {old['holder']} was overwritten by {new['holder']}")
        elif old["run_id"] is not None:
            self._check_left(key, old)
        if new["holder"].partition(":")[0] != self._judge.writer:
            self._judge.blame(f"{self._judge.writer} wrote slot {key} for {new['holder']}")
        if new["run_id"] is not None:
            self._on_name(key, new)
        self.held[key] = new

    def _record(self, event: str, key: str, slot: dict[str, Any]) -> None:
        facts = {"key": key, "holder": slot["holder"], "run": slot["run_id"]}
        self._judge.deployment.loop.record(event, by=self._judge.writer, **facts)

    def _on_take(self, key: str, new: dict[str, Any]) -> None:
        client, _, number = key.rpartition(".")
        if new["run_id"] is not None:
            self._judge.blame(f"slot {key} was filled and not held", new["run_id"])
        cap = self._cap_of(client)
        taken = 1 + sum(each.rpartition(".")[0] == client for each in self.held)
        if int(number) >= cap or taken > cap:
            self._judge.blame(f"slot {key} was taken, {taken} in all, with a cap of {cap}")

    def _on_name(self, key: str, new: dict[str, Any]) -> None:
        """The attempt is recorded before it is named in the slot (GRID-53)."""
        known = self._judge.known.get(new["run_id"])
        if known is None or new["token"] not in known.claimed_by:
            self._judge.blame(f"slot {key} names an attempt that is not recorded", new["run_id"])
        others = [each for each, slot in self.held.items() if each != key and slot["token"] == new["token"]]
        if others:
            self._judge.blame(f"slots {key} and {others[0]} name the same attempt", new["run_id"])
        self._named.add((new["run_id"], new["token"]))

    def _on_free(self, key: str, old: dict[str, Any] | None) -> None:
        if old is None:
            self._judge.blame(f"slot {key} was freed by {self._judge.writer} and not held")
            return
        self._record("slot freed", key, old)
        del self.held[key]
        self._check_left(key, old)

    def _check_left(self, key: str, slot: dict[str, Any]) -> None:
        """The slot is unused: its attempt has ended, or its holder had stopped renewing it (GRID-74)."""
        judge, writer = self._judge, self._judge.writer
        if slot["run_id"] is None:
            is_own = slot["holder"].partition(":")[0] == writer
            if not is_own and judge.latest_clock(writer) - slot["t"] <= _NAMELESS_SECONDS:
                judge.blame(f"slot {key} of {slot['holder']} was freed by {writer} before its time")
            return
        run = judge.known[slot["run_id"]].run
        is_live = run.status in {RunState.RUNNING, RunState.CANCELLING} and run.attempt_id == slot["token"]
        if is_live and not judge.could_look_old(run.run_id, slot["token"], writer):
            judge.blame(f"slot {key} was given up by {writer} while its attempt runs", run.run_id)

    def began(self, worker_id: str, run: Run, attempt: int) -> None:
        """A program is started only for an attempt that was named in a slot."""
        if run.attempt == attempt and not run.is_terminal and run.status is not RunState.PENDING:
            holder = (program_of(run).holder or "").partition(":")[0]
            if holder != worker_id:
                self._judge.blame(f"{worker_id} starts the program of {holder}", run.run_id)
            elif (run.run_id, run.attempt_id or "") not in self._named:
                self._judge.blame("a program is started without a slot", run.run_id)
