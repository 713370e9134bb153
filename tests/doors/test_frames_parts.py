"""The parts of a door that need no socket: seats, the board of waits, budgets, the count of errors."""

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
from pyoco_server.doors.frames.board import Board
from pyoco_server.doors.frames.budget import ByteBudget
from pyoco_server.doors.frames.downloads import send_object
from pyoco_server.doors.frames.faults import PROTOCOL_ERRORS, ErrorCount, as_refusal, error_frame
from pyoco_server.doors.frames.seats import WorkerSeats
from pyoco_server.doors.frames.uploads import Upload
from pyoco_server.errors import Corrupt, NoRoom, ObjectNotFound, PyocoError, QueueFull, TooLarge, Unavailable
from pyoco_server.ports.runs.port import ABSENT, Stored
from support.backends import Clock
from support.waiting import eventually

# Seats ----------------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Seat:
    worker_id: str
    takes: str = "abc"
    is_open: bool = True
    started: list[Any] = field(default_factory=list)

    def accepts(self, exec_name: str) -> bool:
        return exec_name in self.takes

    async def hand_over(self, attempt: Any) -> None:
        self.started.append(attempt)


def seats_of(*workers: Seat, credit: int = 1, may_run: Any = lambda *_: True) -> WorkerSeats:
    seats = WorkerSeats(may_run)
    for worker in workers:
        seats.add(worker)
        seats.add_credits(worker, credit)
    return seats


def served(seats: WorkerSeats, exec_name: str, times: int) -> list[str | None]:
    found = (seats.seat_for(exec_name) for _ in range(times))
    return [seat.worker_id if seat is not None else None for seat in found]


def test_each_program_has_its_own_turns_and_they_outlast_idle_times() -> None:
    """GRID-59"""
    seats = seats_of(*map(Seat, ("w1", "w2", "w3")), credit=10)
    assert served(seats, "a", 4) == ["w1", "w2", "w3", "w1"]
    assert served(seats, "b", 2) == ["w1", "w2"]
    assert served(seats, "a", 1) == ["w2"]


def test_a_seat_that_is_given_back_is_the_next_one_again() -> None:
    """GRID-59, GRID-60: looking at an empty lane moves no turn and costs no credit."""
    anna, bert = Seat("anna"), Seat("bert")
    seats = seats_of(anna, bert)
    for _ in range(5):
        seat = seats.seat_for("a")
        assert seat is not None
        assert seat.worker_id == "anna"
        assert seats.credits(anna) == 0
        seat.give_back()
        assert seats.credits(anna) == 1
    assert served(seats, "a", 3) == ["anna", "bert", None]


def test_seats_that_are_given_back_in_any_order_move_no_turn() -> None:
    """GRID-59, GRID-60: several looks at a lane are under way at once, and the oldest ends first."""
    for order in itertools.permutations(range(4)):
        anna, bert = Seat("anna"), Seat("bert")
        seats = seats_of(anna, bert, credit=5)
        reserved = [seats.seat_for("a") for _ in range(4)]
        for index in order:
            seat = reserved[index]
            assert seat is not None
            seat.give_back()
        assert served(seats, "a", 3) == ["anna", "bert", "anna"]


async def test_the_turn_after_a_served_seat_does_not_depend_on_seats_given_back() -> None:
    """GRID-59"""
    for order in itertools.permutations(range(1, 4)):
        anna, bert = Seat("anna"), Seat("bert")
        seats = seats_of(anna, bert, credit=5)
        first, *others = (seats.seat_for("a") for _ in range(4))
        assert first is not None
        await first.start(cast(Any, None))
        for index in order:
            seat = others[index - 1]
            assert seat is not None
            seat.give_back()
        assert served(seats, "a", 3) == ["bert", "anna", "bert"]


def test_without_credit_pattern_permission_or_connection_there_is_no_seat() -> None:
    """GRID-65, GRID-66, GRID-168"""
    allowed = {("w1", "a"), ("w3", "a"), ("w4", "a")}
    worker, other, closed, poor = Seat("w1"), Seat("w2"), Seat("w3", is_open=False), Seat("w4")
    seats = seats_of(worker, other, closed, may_run=lambda *pair: pair in allowed)
    seats.add(poor)
    assert served(seats, "a", 2) == ["w1", None]
    assert served(seats, "x", 1) == [None]
    assert seats.serves("a")
    assert not seats.serves("b")
    assert not seats.serves("x")
    seats.close()
    seats.add_credits(worker, 1)
    assert served(seats, "a", 1) == [None]
    assert not seats.serves("a")


def test_credits_never_go_below_zero_nor_above_ten_thousand_and_leave_with_their_worker() -> None:
    """GRID-66, GRID-68"""
    chance = random.Random(7)
    workers = [Seat(f"w{number}") for number in range(5)]
    seats, expected = seats_of(*workers, credit=0), dict.fromkeys((each.worker_id for each in workers), 0)
    held: list[Any] = []
    for _ in range(5_000):
        worker = chance.choice(workers)
        match chance.randrange(4):
            case 0:
                count = chance.choice([1, 3, 10_000])
                seats.add_credits(worker, count)
                expected[worker.worker_id] = min(expected[worker.worker_id] + count, 10_000)
            case 1 if held:
                seat = held.pop(chance.randrange(len(held)))
                seat.give_back()
                expected[seat.worker_id] = min(expected[seat.worker_id] + 1, 10_000)
            case _:
                seat = seats.seat_for(chance.choice("abc"))
                if seat is not None:
                    held.append(seat)
                    expected[seat.worker_id] -= 1
        assert {each.worker_id: seats.credits(each) for each in workers} == expected
        assert min(expected.values()) >= 0
    seats.remove(workers[0])
    seats.remove(workers[0])
    seats.add_credits(workers[0], 5)
    assert seats.credits(workers[0]) == 0
    assert "w0" not in served(seats, "a", 20)


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


def a_board(runs: Runs) -> Board:
    return Board(cast("Any", runs), every_seconds=3600)


async def test_a_word_that_a_run_has_ended_is_checked_and_told_to_each_that_waits() -> None:
    """GRID-51: a hint is no proof. It may mean that the run was put back."""
    runs, anna, bert = Runs(), Waiting(), Waiting()
    board = a_board(runs)
    board.wait("r1", anna)
    board.wait("r1", bert)
    board.wait("r1", bert)
    board.wait("r2", bert)
    assert len(board) == 2
    runs.states = {"r1": RunState.PENDING, "r2": RunState.COMPLETED}
    board.doubt("r1")
    board.doubt("r2")
    board.doubt("nobody waits for this")
    await eventually(lambda: bert.told == ["r2"])
    assert anna.told == []
    runs.states["r1"] = RunState.FAILED
    board.doubt("r1")
    await eventually(lambda: anna.told == ["r1"])
    assert bert.told == ["r2", "r1"]
    for run_id, waiter in (("r1", anna), ("r1", bert), ("r2", bert), ("r2", anna)):
        board.leave(run_id, waiter)
    assert len(board) == board._count == 0
    assert "nobody waits for this" not in runs.asked
    await board.stop()


async def test_each_turn_reads_what_is_waited_for_the_oldest_always_and_the_others_in_turn() -> None:
    """GRID-51"""
    runs, waiter = Runs(), Waiting()
    board = a_board(runs)
    for number in range(700):
        board.wait(f"r{number}", waiter)
    for turn in range(1, 5):
        await board.turn()
        await eventually(lambda turn=turn: len(runs.asked) == 250 * turn)  # type: ignore[misc]
    assert {f"r{number}" for number in range(100)} == {each for each in runs.asked if runs.asked.count(each) == 4}
    assert set(runs.asked) == {f"r{number}" for number in range(700)}
    await board.stop()


async def test_an_outage_is_asked_about_again() -> None:
    """GRID-51, GRID-195"""
    runs, waiter = Runs(), Waiting()
    board = a_board(runs)
    board.wait("r1", waiter)
    runs.is_down, runs.states = True, {"r1": RunState.COMPLETED}
    await board.turn()
    await eventually(lambda: runs.asked == ["r1"])
    runs.is_down = False
    await board.turn()
    await eventually(lambda: waiter.told == ["r1"])
    await board.stop()


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
    upload = Upload(part, 0.0)

    def full(_: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(upload, "_write", full)
    with pytest.raises(NoRoom):
        await upload.add(part, 0.0)
    upload.close()
    upload.close()
