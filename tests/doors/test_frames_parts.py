"""The parts of a door that need no socket: worker credits, waiting clients, budgets, the count of errors."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from pyoco_server.core.frames.messages import BinaryPart, ObjectGet
from pyoco_server.core.programs.faults import FACTS, Code, GridRefused
from pyoco_server.core.programs.job import InputFile
from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState
from pyoco_server.doors.frames.assigning import INLINE_BYTES_MAX, split_inputs
from pyoco_server.doors.frames.budget import ByteBudget
from pyoco_server.doors.frames.credits import WorkerCredits
from pyoco_server.doors.frames.downloads import send_object
from pyoco_server.doors.frames.end_waiters import EndWaiters
from pyoco_server.doors.frames.faults import PROTOCOL_ERRORS, ErrorCount, as_refusal, error_frame
from pyoco_server.doors.frames.uploads import IncomingUpload
from pyoco_server.errors import Corrupt, NoRoom, ObjectNotFound, PyocoError, QueueFull, TooLarge, Unavailable
from pyoco_server.ports.runs.port import ABSENT, Stored
from support.backends import Clock
from support.waiting import eventually

# Seats ----------------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Seat:
    worker_id: str
    programs: str = "abc"
    is_open: bool = True
    started: list[Any] = field(default_factory=list)
    #: Tenants whose runs it may have.
    tenants: tuple[str | None, ...] = (None,)

    def takes(self, exec_name: str) -> bool:
        return True

    def accepts(self, exec_name: str) -> bool:
        return exec_name in self.programs

    def may_handle(self, tenant: str | None) -> bool:
        return tenant in self.tenants

    async def hand_over(self, attempt: Any) -> None:
        self.started.append(attempt)


def seats_of(*workers: Seat, credit: int = 1, may_run: Any = lambda *_: True) -> WorkerCredits:
    worker_credits = WorkerCredits(may_run)
    for worker in workers:
        worker_credits.add(worker)
        worker_credits.add_credits(worker, credit)
    return worker_credits


def served(worker_credits: WorkerCredits, exec_name: str, times: int) -> list[str | None]:
    found = (worker_credits.reserve_credit(exec_name) for _ in range(times))
    return [credit.worker_id if credit is not None else None for credit in found]


def test_each_program_has_its_own_turns_and_they_outlast_idle_times() -> None:
    """GRID-59"""
    worker_credits = seats_of(*map(Seat, ("w1", "w2", "w3")), credit=10)
    assert served(worker_credits, "a", 4) == ["w1", "w2", "w3", "w1"]
    assert served(worker_credits, "b", 2) == ["w1", "w2"]
    assert served(worker_credits, "a", 1) == ["w2"]


def test_a_seat_that_is_given_back_is_the_next_one_again() -> None:
    """GRID-59, GRID-60: looking at an empty lane moves no turn and costs no credit."""
    anna, bert = Seat("anna"), Seat("bert")
    worker_credits = seats_of(anna, bert)
    for _ in range(5):
        credit = worker_credits.reserve_credit("a")
        assert credit is not None
        assert credit.worker_id == "anna"
        assert worker_credits.credits(anna) == 0
        credit.return_unused()
        assert worker_credits.credits(anna) == 1
    assert served(worker_credits, "a", 3) == ["anna", "bert", None]


def test_seats_that_are_given_back_in_any_order_move_no_turn() -> None:
    """GRID-59, GRID-60: several looks at a lane are under way at once, and the oldest ends first."""
    for order in itertools.permutations(range(4)):
        anna, bert = Seat("anna"), Seat("bert")
        worker_credits = seats_of(anna, bert, credit=5)
        reserved = [worker_credits.reserve_credit("a") for _ in range(4)]
        for index in order:
            credit = reserved[index]
            assert credit is not None
            credit.return_unused()
        assert served(worker_credits, "a", 3) == ["anna", "bert", "anna"]


async def test_the_turn_after_a_served_seat_does_not_depend_on_seats_given_back() -> None:
    """GRID-59"""
    for order in itertools.permutations(range(1, 4)):
        anna, bert = Seat("anna"), Seat("bert")
        worker_credits = seats_of(anna, bert, credit=5)
        first, *others = (worker_credits.reserve_credit("a") for _ in range(4))
        assert first is not None
        await first.start(cast(Any, None))
        for index in order:
            credit = others[index - 1]
            assert credit is not None
            credit.return_unused()
        assert served(worker_credits, "a", 3) == ["bert", "anna", "bert"]


def test_without_credit_pattern_permission_or_connection_there_is_no_seat() -> None:
    """GRID-65, GRID-66, GRID-168"""
    allowed = {("w1", "a"), ("w3", "a"), ("w4", "a")}
    worker, other, closed, poor = Seat("w1"), Seat("w2"), Seat("w3", is_open=False), Seat("w4")
    worker_credits = seats_of(worker, other, closed, may_run=lambda *pair: pair in allowed)
    worker_credits.add(poor)
    assert served(worker_credits, "a", 2) == ["w1", None]
    assert served(worker_credits, "x", 1) == [None]
    assert worker_credits.serves("a")
    assert not worker_credits.serves("b")
    assert not worker_credits.serves("x")
    worker_credits.close()
    worker_credits.add_credits(worker, 1)
    assert served(worker_credits, "a", 1) == [None]
    assert not worker_credits.serves("a")


def test_credits_never_go_below_zero_nor_above_ten_thousand_and_leave_with_their_worker() -> None:
    """GRID-66, GRID-68"""
    chance = random.Random(7)
    workers = [Seat(f"w{number}") for number in range(5)]
    worker_credits, expected = seats_of(*workers, credit=0), dict.fromkeys((each.worker_id for each in workers), 0)
    held: list[Any] = []
    for _ in range(5_000):
        worker = chance.choice(workers)
        match chance.randrange(4):
            case 0:
                count = chance.choice([1, 3, 10_000])
                worker_credits.add_credits(worker, count)
                expected[worker.worker_id] = min(expected[worker.worker_id] + count, 10_000)
            case 1 if held:
                credit = held.pop(chance.randrange(len(held)))
                credit.return_unused()
                expected[credit.worker_id] = min(expected[credit.worker_id] + 1, 10_000)
            case _:
                credit = worker_credits.reserve_credit(chance.choice("abc"))
                if credit is not None:
                    held.append(credit)
                    expected[credit.worker_id] -= 1
        assert {each.worker_id: worker_credits.credits(each) for each in workers} == expected
        assert min(expected.values()) >= 0
    worker_credits.remove(workers[0])
    worker_credits.remove(workers[0])
    worker_credits.add_credits(workers[0], 5)
    assert worker_credits.credits(workers[0]) == 0
    assert "w0" not in served(worker_credits, "a", 20)


# The board ------------------------------------------------------------------------------------------------------------


def a_run(run_id: str, status: RunState) -> Run:
    return Run(
        run_id=run_id, flow_name="exec:a", tag="exec", submitted_at=0, updated_at=0, heartbeat_at=0, status=status
    )


class Runs:
    """What a board asks of a store of runs."""

    def __init__(self) -> None:
        self.states: dict[str, RunState] = {}
        self.asked: list[str] = []
        self.is_down = False

    async def find(self, run_id: str) -> Any:
        self.asked.append(run_id)
        await asyncio.sleep(0)
        if self.is_down:
            raise Unavailable
        status = self.states.get(run_id)
        return ABSENT if status is None else Stored(a_run(run_id, status), 1)


class Waiting:
    def __init__(self) -> None:
        self.told: list[str] = []

    def tell(self, run: Run) -> None:
        self.told.append(run.run_id)


def a_board(runs: Runs) -> EndWaiters:
    return EndWaiters(cast("Any", runs), every_seconds=3600)


async def test_a_word_that_a_run_has_ended_is_checked_and_told_to_each_that_waits() -> None:
    """GRID-51: a hint is no proof. It may mean that the run was put back."""
    runs, anna, bert = Runs(), Waiting(), Waiting()
    end_waiters = a_board(runs)
    end_waiters.wait("r1", anna)
    end_waiters.wait("r1", bert)
    end_waiters.wait("r1", bert)
    end_waiters.wait("r2", bert)
    assert len(end_waiters) == 2
    runs.states = {"r1": RunState.PENDING, "r2": RunState.COMPLETED}
    end_waiters.doubt("r1")
    end_waiters.doubt("r2")
    end_waiters.doubt("nobody waits for this")
    await eventually(lambda: bert.told == ["r2"])
    assert anna.told == []
    runs.states["r1"] = RunState.FAILED
    end_waiters.doubt("r1")
    await eventually(lambda: anna.told == ["r1"])
    assert bert.told == ["r2", "r1"]
    for run_id, waiter in (("r1", anna), ("r1", bert), ("r2", bert), ("r2", anna)):
        end_waiters.leave(run_id, waiter)
    assert len(end_waiters) == end_waiters._count == 0
    assert "nobody waits for this" not in runs.asked
    await end_waiters.stop()


async def test_each_turn_reads_what_is_waited_for_the_oldest_always_and_the_others_in_turn() -> None:
    """GRID-51"""
    runs, waiter = Runs(), Waiting()
    end_waiters = a_board(runs)
    for number in range(700):
        end_waiters.wait(f"r{number}", waiter)
    for turn in range(1, 5):
        await end_waiters.turn()
        await eventually(lambda turn=turn: len(runs.asked) == 250 * turn)  # type: ignore[misc]
    assert {f"r{number}" for number in range(100)} == {each for each in runs.asked if runs.asked.count(each) == 4}
    assert set(runs.asked) == {f"r{number}" for number in range(700)}
    await end_waiters.stop()


async def test_an_outage_is_asked_about_again() -> None:
    """GRID-51, GRID-195"""
    runs, waiter = Runs(), Waiting()
    end_waiters = a_board(runs)
    end_waiters.wait("r1", waiter)
    runs.is_down, runs.states = True, {"r1": RunState.COMPLETED}
    await end_waiters.turn()
    await eventually(lambda: runs.asked == ["r1"])
    runs.is_down = False
    await end_waiters.turn()
    await eventually(lambda: waiter.told == ["r1"])
    await end_waiters.stop()


# Budgets, errors ------------------------------------------------------------------------------------------------------


async def test_a_budget_serves_in_order_and_lets_one_through_that_is_larger_than_all_of_it() -> None:
    """GRID-195: memory stays bounded."""
    budget = ByteBudget(10)
    await budget.take(8)
    assert not budget.try_take(3)
    order: list[int] = []

    async def take(size: int) -> None:
        await budget.take(size)
        order.append(size)

    tasks = [asyncio.create_task(take(size)) for size in (25, 2, 3)]
    await asyncio.sleep(0)
    assert not budget.try_take(1)  # others were first
    budget.give(8)
    await asyncio.sleep(0)
    assert order == [25]
    tasks[1].cancel()
    budget.give(25)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert budget.in_use == sum(order[1:])
    budget.give(budget.in_use)
    assert budget.try_take(10)


def test_the_tenth_error_counts_only_within_a_minute() -> None:
    """GRID-35"""
    clock = Clock()
    errors = ErrorCount(clock)
    for _ in range(9):
        assert not errors.add()
    clock.now += 60.0
    assert not errors.add()
    for _ in range(8):
        assert not errors.add()
    assert errors.add()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (QueueFull(), Code.QUEUE_FULL),
        (Unavailable("at nats://user:secret@host"), Code.UNAVAILABLE),
        (NoRoom("/var/x"), Code.UNAVAILABLE),
        (ObjectNotFound("abc"), Code.NOT_FOUND),
        (TooLarge("abc"), Code.TOO_LARGE),
        (Corrupt("abc"), Code.INTERNAL),
        (GridRefused(Code.BAD_CREDIT, "no"), Code.BAD_CREDIT),
    ],
)
def test_an_error_meets_a_code_and_its_own_text_stays_here(error: PyocoError, code: Code) -> None:
    """GRID-169"""
    refusal = as_refusal(error, "6f1c2a9e-3b7d-4c55-9a10-2f4e8d7b6c01")
    assert (refusal.code, refusal.job_id) == (code, "6f1c2a9e-3b7d-4c55-9a10-2f4e8d7b6c01")
    payload = error_frame(refusal).payload
    assert all(word not in payload for word in (b"secret", b"abc", b"/var/x"))


def test_what_may_work_later_is_no_protocol_error() -> None:
    """GRID-35, section 26.2"""
    assert not any(FACTS[code].retry for code in PROTOCOL_ERRORS)


# Files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "inline"),
    [([], []), ([1, 2], [0, 1]), ([INLINE_BYTES_MAX], [0]), ([INLINE_BYTES_MAX + 1, 5], [1]), ([0] * 64, [*range(64)])],
)
def test_inputs_that_fit_travel_along_in_order_of_name(sizes: list[int], inline: list[int]) -> None:
    """GRID-147"""
    files = tuple(InputFile(f"f{number:02}", size, "") for number, size in enumerate(sizes))
    names, refs = split_inputs(files)
    assert names == [f"f{number:02}" for number in inline]
    assert [each.name for each in refs] == [each.name for each in files if each.name not in names]


@pytest.mark.parametrize("size", [0, 1, 1024 * 1024, 1024 * 1024 + 1, 3 * 1024 * 1024])
@pytest.mark.parametrize("offset", [0, 1, 1024 * 1024])
async def test_an_object_is_sent_from_its_offset_to_its_end_in_parts(size: int, offset: int) -> None:
    """GRID-146"""
    if offset > size:
        return
    data = random.Random(size).randbytes(size)
    sent: list[BinaryPart] = []

    async def send(frame: Any) -> None:
        sent.append(BinaryPart.read(frame.payload))

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, size, 100_000):
            yield data[start : start + 100_000]

    asked = ObjectGet(job_id="6f1c2a9e-3b7d-4c55-9a10-2f4e8d7b6c01", name="output.zip", offset=offset)
    sha256 = hashlib.sha256(data).hexdigest()
    wire: Any = SimpleNamespace(send=send)
    await send_object(wire, asked, UUID(int=1), size, sha256, pieces())
    assert b"".join(each.data for each in sent) == data[offset:]
    assert [each.last for each in sent] == [False] * (len(sent) - 1) + [True]
    assert sent[-1].sha256 == sha256
    assert all(len(each.data) <= 1024 * 1024 for each in sent)


async def test_an_upload_without_room_on_the_disk_is_no_fault_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """GRID-144, GRID-195"""
    part = BinaryPart(job_id="j", name="output.zip", offset=0, size=4, last=False, data=b"da")
    upload = IncomingUpload(part, 0.0)

    def full(_: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(upload, "_write", full)
    with pytest.raises(NoRoom):
        await upload.add(part, 0.0)
    upload.close()
    upload.close()
