"""The checker of histories: it finds each thing that cannot have been, and nothing in what can."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storm.history import LOST, Facts, History, Put, Read, Seen, Write, check

KEY = "run"


def flow(status: str, attempt: int = 0, token: str | None = None, at: float = 0.0) -> Facts:
    return Facts(status, attempt, token, at)


def program(status: str, attempt: int = 0, token: str | None = None, at: float = 0.0) -> Facts:
    return Facts(status, attempt, token, at, kind="exec")


def pack(status: str, version: int) -> Facts:
    return Facts(status, kind="pack", version=version)


def chain(*states: Facts | None, first: int = 1) -> list[Write]:
    """Each over the one before, a second apart, with gaps in the numbers as other keys leave them."""
    found: list[Write] = []
    for place, facts in enumerate(states):
        before = found[-1].revision if found else 0
        found.append(Write(KEY, first + 3 * place, before, facts, float(place)))
    return found


LIFE = chain(
    flow("PENDING", at=1),
    flow("RUNNING", 1, "a", at=2),
    flow("RUNNING", 1, "a", at=3),
    flow("RUNNING", 2, "b", at=4),
    flow("COMPLETED", 2, "b", at=5),
)


def told(history: History, **how: bool) -> list[str]:
    return [violation.what for violation in check(history, **how)]


LAWFUL = {
    "a flow that was taken over": LIFE,
    "a flow that was handed back": chain(
        flow("PENDING"), flow("RUNNING", 1, "a"), flow("RUNNING", 1, None), flow("RUNNING", 2, "b")
    ),
    "a flow that was cancelled": chain(flow("PENDING"), flow("CANCELLING"), flow("CANCELLED")),
    "a submission that was taken back and came again": chain(flow("PENDING"), None, flow("PENDING")),
    "an end that has expired": [
        *chain(flow("PENDING"), flow("FAILED")),
        Write(KEY, 90, None, None, 9.0, is_mark=True),
    ],
    "a program that was put back, came back, and got its letter": chain(
        program("PENDING"),
        program("RUNNING", 1, "a"),
        program("PENDING", 1, "a"),
        program("RUNNING", 1, "a"),
        program("FAILED", 1, "a"),
        program("FAILED", 1, "a"),
    ),
    "a program that was claimed and never handed over": chain(
        program("PENDING"), program("RUNNING", 1, "a"), program("PENDING", 0), program("RUNNING", 1, "b")
    ),
    "a pack whose row changed after its end": chain(pack("PENDING", 1), pack("COMPLETED", 4), pack("COMPLETED", 5)),
}


@pytest.mark.parametrize("writes", LAWFUL.values(), ids=LAWFUL)
def test_what_may_happen_is_not_complained_of(writes: list[Write]) -> None:
    assert check(History(writes)) == []


def _blind(writes: list[Write]) -> list[Write]:
    return [*writes[:2], replace(writes[2], replaced=None), *writes[3:]]


def _two_over_one(writes: list[Write]) -> list[Write]:
    return [*writes[:3], replace(writes[3], replaced=writes[1].revision), *writes[4:]]


UNLAWFUL: dict[str, tuple[list[Write], str]] = {
    "blind": (_blind(LIFE), "a blind write"),
    "gone, and not by the server": ([*LIFE, Write(KEY, 90, None, None, 9.0)], "an ended run was taken away"),
    "two over one revision": (_two_over_one(LIFE), "written over another revision than the newest"),
    "one is missing": ([*LIFE[:2], *LIFE[3:]], "written over another revision than the newest"),
    "the first is missing": (LIFE[1:], "written over another revision than the newest"),
    "no beginning": (chain(flow("RUNNING", 1, "a")), "it does not begin as PENDING"),
    "two ends": (chain(flow("PENDING"), flow("FAILED"), flow("CANCELLED")), "a second end"),
    "on after the end": (chain(flow("PENDING"), flow("FAILED"), flow("RUNNING", 1, "a")), "an ended run went on"),
    "the same end twice": (chain(flow("PENDING"), flow("FAILED"), flow("FAILED")), "a write after the end"),
    "a program's end by another": (
        chain(program("PENDING"), program("RUNNING", 1, "a"), program("FAILED", 1, "a"), program("FAILED", 1, "b")),
        "a write after the end",
    ),
    "an end taken away": (chain(flow("PENDING"), flow("FAILED"), None), "an ended run was taken away"),
    "back in the middle": (chain(flow("PENDING"), None, flow("RUNNING", 1, "a")), "taken away, and back in the middle"),
    "no such step": (chain(flow("PENDING"), flow("COMPLETED")), "a step that no table has"),
    "back from its end": (
        chain(flow("PENDING"), flow("RUNNING", 1, "a"), flow("FAILED", 1, "a"), flow("PENDING", 1)),
        "an ended run went on",
    ),
    "an attempt less": (
        chain(flow("PENDING"), flow("RUNNING", 1, "a"), flow("RUNNING", 2, "b"), flow("RUNNING", 1, None)),
        "attempt 1 after attempt 2",
    ),
    "two attempts at once": (chain(flow("PENDING"), flow("RUNNING", 2, "a")), "attempt 2 after attempt 0"),
    "an attempt by nobody": (chain(flow("PENDING"), flow("RUNNING", 1, None)), "an attempt without a claim"),
    "an owner more": (
        chain(flow("PENDING"), flow("RUNNING", 1, "a"), flow("RUNNING", 1, "b")),
        "another token in the same attempt",
    ),
    "a fenced one writes": (
        chain(flow("PENDING"), flow("RUNNING", 1, "a"), flow("RUNNING", 2, "b"), flow("RUNNING", 3, "a")),
        "a token came back",
    ),
    "an older row": (chain(pack("PENDING", 2), pack("RUNNING", 2)), "an older version of a row was shown over a newer"),
    "another kind": (chain(flow("PENDING"), program("PENDING")), "another kind of run under the same key"),
}


@pytest.mark.parametrize(("writes", "what"), UNLAWFUL.values(), ids=UNLAWFUL)
def test_each_wrong_write_is_found(writes: list[Write], what: str) -> None:
    """FLOW-19, FLOW-178, FLOW-311, GRID-47"""
    assert [each for each in told(History(writes)) if each.startswith(what)], told(History(writes))


def read(place: int | None, began: float, ended: float, *, tells_revision: bool = False) -> Read:
    if place is None:
        return Read(KEY, began, ended, None)
    return Read(KEY, began, ended, LIFE[place].facts, LIFE[place].revision if tells_revision else None)


@pytest.mark.parametrize("tells_revision", [False, True])
def test_a_read_during_a_write_may_tell_either(tells_revision: bool) -> None:
    seen = [Seen(KEY, LIFE[2].revision, 2.5, LIFE[2].facts)]
    reads = [read(1, 1.5, 2.5, tells_revision=tells_revision), read(2, 1.5, 2.5, tells_revision=tells_revision)]
    assert check(History(LIFE, reads, seen=seen)) == []


STALE: dict[str, History] = {
    "somebody had read a newer one": History(LIFE, [read(2, 2.1, 2.2), read(1, 2.3, 2.4)]),
    "its writer had been told": History(
        LIFE, [read(1, 2.3, 2.4)], [Put(KEY, 1.9, 2.2, LIFE[1].revision, LIFE[2].facts, LIFE[2].revision)]
    ),
    "the observer had seen it": History(
        LIFE, [read(1, 2.3, 2.4)], seen=[Seen(KEY, LIFE[2].revision, 2.2, LIFE[2].facts)]
    ),
    "the run is not there any more": History(LIFE, [read(0, 0.1, 0.2), read(None, 0.3, 0.4)]),
}


@pytest.mark.parametrize("history", STALE.values(), ids=STALE)
def test_a_stale_read_is_found_unless_that_is_allowed(history: History) -> None:
    assert told(history) == ["a stale read"]
    assert told(history, stale_reads=False) == []


def test_a_read_of_what_never_was_is_found_and_one_of_what_comes_later() -> None:
    invented = Read(KEY, 3.0, 3.1, flow("RUNNING", 1, "a", at=2.5))
    swapped = Read(KEY, 3.0, 3.1, LIFE[1].facts, LIFE[2].revision)
    early = read(4, 3.0, 3.1)
    assert told(History(LIFE, [invented])) == ["a read told what was never written"]
    assert told(History(LIFE, [swapped])) == ["a read told what was never written"]
    assert told(History(LIFE, [early])) == ["a read told what was written later"]


def test_what_was_seen_or_acknowledged_and_is_gone_is_found() -> None:
    """An acknowledged write survives."""
    last = LIFE[4]
    seen = Seen(KEY, last.revision, 4.5, last.facts)
    put = Put(KEY, 4.0, 4.5, LIFE[3].revision, last.facts, last.revision)
    assert check(History(LIFE, puts=[put], seen=[seen])) == []
    assert told(History(LIFE[:4], seen=[seen])) == ["a committed write is gone"]
    assert told(History(LIFE[:4], puts=[put])) == ["an acknowledged write is gone"]
    assert told(History(LIFE, seen=[replace(seen, facts=LIFE[3].facts)])) == ["a committed write is another by now"]
    assert told(History(LIFE, puts=[replace(put, asked=2)])) == ["an acknowledged write is another by now"]


def test_who_lost_must_have_lost_to_somebody() -> None:
    """FLOW-178"""
    fair = Put(KEY, 0.9, 1.1, LIFE[0].revision, flow("RUNNING", 1, "c"), LOST)
    unfair = replace(fair, began=0.2, ended=0.4)
    create = replace(fair, asked=0)
    assert check(History(LIFE, puts=[fair, create])) == []
    assert told(History(LIFE, puts=[unfair])) == ["lost, though nobody was faster"]
    assert told(History([], puts=[replace(create, began=0.0, ended=0.1)])) == ["lost, though nobody was faster"]


def _after(old: Facts, key: str, now: float) -> list[Facts]:
    """What core may write over this: a claim, a beat, a hand-back, a cancel, an end."""
    old = replace(old, updated_at=now)
    if old.status == "CANCELLING":
        return [replace(old, status="CANCELLED")]
    claimed = replace(old, status="RUNNING", attempt=old.attempt + 1, token=f"{key}-{old.attempt + 1}")
    found = [claimed, replace(old, status="CANCELLING"), replace(old, status="FAILED")]
    if old.status == "RUNNING":
        found += [old, old, old, replace(old, status="COMPLETED"), replace(old, token=None)]
    return found


def _random_life(dice: random.Random, key: str, revisions: itertools.count[int]) -> list[Write]:
    state, at = flow("PENDING", at=dice.random()), dice.random()
    found = [Write(key, next(revisions), 0, state, at)]
    while not state.is_terminal and len(found) < 12:
        at += 0.2 + dice.random()
        state = dice.choice(_after(state, key, at))
        found.append(Write(key, next(revisions), found[-1].revision, state, at))
    return found


def _random_history(dice: random.Random) -> History:
    """Lives of some keys, and calls that each took effect at one instant between its beginning and its end."""
    history = History()
    revisions = itertools.count(1)
    for number in range(dice.randint(1, 3)):
        life = _random_life(dice, f"run-{number}", revisions)
        history.committed += life
        for before, write in zip([None, *life], life, strict=False):
            asked = before.revision if before else 0
            ended = write.stored_at + dice.random()
            outcome = dice.choice([write.revision, None])
            history.puts.append(Put(write.key, write.stored_at - dice.random(), ended, asked, write.facts, outcome))
            if dice.random() < 0.5:
                history.seen.append(Seen(write.key, write.revision, ended, write.facts))
            if before is not None and dice.random() < 0.3:  # somebody was slower
                slower = flow("RUNNING", 9, "slower", dice.random())
                history.puts.append(Put(write.key, write.stored_at - 0.1, ended, before.revision, slower, LOST))
        for _ in range(dice.randint(0, 12)):
            instant = dice.uniform(0.0, life[-1].stored_at + 1.0)
            known = [write for write in life if write.stored_at <= instant]
            facts = known[-1].facts if known else None
            revision = known[-1].revision if known and dice.random() < 0.5 else None
            around = instant - dice.random(), instant + dice.random()
            history.reads.append(Read(life[0].key, *around, facts, revision))
    for part in (history.committed, history.reads, history.puts, history.seen):
        dice.shuffle(part)
    return history


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_a_random_history_of_one_register_per_key_is_accepted(seed: int) -> None:
    assert check(_random_history(random.Random(seed))) == []


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_a_random_history_with_one_write_gone_wrong_is_not(seed: int) -> None:
    """Left out in the middle, over another revision, or as if the store had ignored the expected one."""
    dice = random.Random(seed)
    history = _random_history(dice)
    by_key = sorted(history.committed, key=lambda write: (write.key, write.revision))
    inner = [two for one, two in itertools.pairwise(by_key) if one.key == two.key]
    if not inner:
        return
    victim = dice.choice(inner)
    history.committed.remove(victim)
    how = dice.choice(["another", "blind", "stale"])
    if how == "another":
        history.committed.append(replace(victim, replaced=(victim.replaced or 0) + 1))
    elif how == "blind":
        history.committed.append(replace(victim, replaced=None))
    else:
        history.committed.append(replace(victim, replaced=0))
    assert check(history) != []
