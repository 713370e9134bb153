"""The JetStream in memory answers as nats-server does: the same operations on both, with fixed seeds.

Ack timers and heartbeats are left to the contract classes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from pyoco_server.ports.nats.link import Link, open_link
from pyoco_server.ports.nats.memory.server import drop_server
from support.jetstream_steps import CONSUMERS, Kind, Player, Step, steps
from support.waiting import eventually

_STEPS = 80
_FLOORS = frozenset({"ack_floor", "delivered"})
_MARKED = {"allow_msg_ttl": True, "allow_rollup_hdrs": True, "subject_delete_marker_ttl": 7200 * 1_000_000_000}
_NO_ACKS = {"ack_policy": "none"}
KINDS = [
    Kind("limits", {"allow_msg_ttl": True}, ({"max_deliver": 2}, {"filter_subject": "c.>"})),
    Kind("work", {"retention": "workqueue"}, ({"filter_subject": "a", "max_deliver": 3}, {"filter_subject": "c.>"})),
    Kind("bucket", {"max_msgs_per_subject": 1, "discard": "new"}, ({}, {"filter_subject": "*"})),
    Kind("objects", {"allow_rollup_hdrs": True}, (_NO_ACKS, {**_NO_ACKS, "filter_subject": "c.*"}), _FLOORS),
    Kind("marked", _MARKED, (_NO_ACKS, _NO_ACKS), _FLOORS),
    Kind("full", {"max_msgs": 3, "discard": "new"}, ({"max_deliver": 1}, {"deliver_policy": "new"})),
    Kind("ring", {"max_bytes": 1200, "max_msg_size": 200}, ({"max_deliver": 2}, {"deliver_policy": "new"})),
]
#: By kind: what some answer has to say. Otherwise the limit that the kind is there for was compared nowhere.
_REACHED = {"full": "maximum messages exceeded"}


@pytest.fixture
async def memory() -> AsyncIterator[Link]:
    url = "memory://agrees"
    link = await open_link(url, "tests")
    yield link
    await link.close()
    drop_server(url)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("seed", range(3))
async def test_both_servers_answer_alike(link: Link, memory: Link, kind: Kind, seed: int) -> None:
    real, own = (Player(each, "AGREES", kind.ignored) for each in (link, memory))
    played: list[Step] = []
    answers: list[str] = []
    try:
        for step in steps(kind, seed, _STEPS, lambda: len(real.replies)):
            played.append(step)
            story = f"after {len(played)} steps, the last of them:\n" + "\n".join(map(str, played[-10:]))
            expected, found = await real.play(step), await own.play(step)
            assert found == expected, story
            answers.append(str(found))
            await _settle(real, own, story)
    finally:
        await real.api("STREAM.DELETE.{}")
    assert any(_REACHED.get(kind.name, "") in answer for answer in answers)


async def _state(player: Player) -> list[object]:
    seen: list[object] = [await player.stream_info(">")]
    return seen + [await player.api(f"CONSUMER.INFO.{{}}.{name}") for name in CONSUMERS]


async def _settle(real: Player, own: Player, story: str) -> None:
    """A server tells its consumers of a change a moment after it has answered."""
    wanted = await _state(own)
    found: list[object] = []

    async def agrees() -> bool:
        found[:] = await _state(real)
        return found == wanted

    try:
        await eventually(agrees, 2)
    except AssertionError:
        assert wanted == found, story


_NS = 1_000_000_000
_ONE = Step("make_consumer", ("c0", {"max_deliver": 1, "filter_subject": "a"}, "create"))
_WORK = Step("make_stream", ({"retention": "workqueue"}, "CREATE"))
_PLAIN = [Step("make_stream", ({}, "CREATE")), Step("make_consumer", ("c0", {}, "create"))]
_A, _LOOK = Step("publish", ("a", 1, {})), Step("api", ("CONSUMER.INFO.{}.c0",))
_DELAY = b'-NAK {"delay": 60000000000}'
SCRIPTS = {
    "a late ack removes a message that was given up": [
        *(_WORK, _ONE, _A, _A, Step("pull", ("c0", 2, 0)), Step("answer", (0, b"-NAK")), Step("answer", (1, b"+ACK"))),
        *(Step("pull", ("c0", 1, 1)), _LOOK, Step("answer", (0, b"+ACK")), _LOOK),
    ],
    "progress does not take back a negative answer": [
        *(*_PLAIN, _A, Step("pull", ("c0", 1, 0)), Step("answer", (0, b"-NAK")), Step("answer", (0, b"+WPI"))),
        *(Step("pull", ("c0", 1, 0)), _LOOK),
    ],
    "a delay counts for what was to come at once": [
        *(*_PLAIN, _A, Step("pull", ("c0", 1, 0)), Step("answer", (0, b"-NAK")), Step("answer", (0, _DELAY))),
        *(Step("pull", ("c0", 1, 0)), Step("answer", (0, b"-NAK")), Step("pull", ("c0", 1, 0)), _LOOK),
    ],
    "an ack of the first delivery ends the third": [
        *(*_PLAIN, _A, Step("pull", ("c0", 1, 0)), Step("answer", (0, b"-NAK")), Step("pull", ("c0", 1, 0))),
        *(Step("answer", (0, b"-NAK")), Step("pull", ("c0", 1, 0)), Step("answer", (0, b"+ACK"))),
        *(Step("answer", (2, b"-NAK")), Step("pull", ("c0", 1, 0)), _LOOK),
    ],
    "a message that is deleted needs no answer": [
        *(*_PLAIN, _A, _A, Step("pull", ("c0", 2, 0)), Step("api", ("STREAM.MSG.DELETE.{}", {"seq": 1}))),
        *(Step("answer", (0, b"-NAK")), Step("pull", ("c0", 1, 0)), _LOOK),
    ],
    "more deliveries are allowed later": [
        *(_WORK, _ONE, _A, Step("pull", ("c0", 1, 0)), Step("answer", (0, b"-NAK")), Step("pull", ("c0", 1, 0))),
        Step("make_consumer", ("c0", {"max_deliver": 5, "filter_subject": "a"}, "update")),
        *(Step("answer", (0, b"-NAK")), Step("pull", ("c0", 1, 0)), _LOOK),
    ],
    "settings of a consumer that cannot change": [
        *_PLAIN,
        Step("make_consumer", ("c0", {"ack_policy": "none"}, "update")),
        Step("make_consumer", ("c0", {"deliver_policy": "new"}, "")),
        Step("make_consumer", ("c0", {"inactive_threshold": 60 * _NS, "max_waiting": 7}, "update")),
    ],
    "consumers of a work queue do not share a subject": [
        *(_WORK, _ONE, Step("make_consumer", ("c1", {"filter_subject": "*"}, "create"))),
        Step("make_consumer", ("c1", {}, "create")),
        Step("make_consumer", ("c1", {"filter_subject": "b", "ack_policy": "none"}, "create")),
        Step("make_consumer", ("c1", {"filter_subject": "b"}, "create")),
    ],
}


@pytest.mark.parametrize("name", SCRIPTS)
async def test_both_servers_agree_that(link: Link, memory: Link, name: str) -> None:
    real, own = Player(link, "AGREES"), Player(memory, "AGREES")
    try:
        for step in SCRIPTS[name]:
            expected, found = await real.play(step), await own.play(step)
            assert found == expected, step
            await _settle(real, own, str(step))
    finally:
        await real.api("STREAM.DELETE.{}")


async def test_both_servers_leave_the_same_markers(link: Link, memory: Link) -> None:
    """A second passes. One stream has messages that expire by themselves, the other a limit on age."""
    config = {"allow_msg_ttl": True, "allow_rollup_hdrs": True}
    for more in ({"subject_delete_marker_ttl": _NS}, {"subject_delete_marker_ttl": 90 * _NS, "max_age": _NS}):
        players = [Player(link, "AGREES"), Player(memory, "AGREES")]
        for player in players:
            await player.make_stream(config | more, "CREATE")
            await player.publish("a", 1, {"Nats-TTL": "1s"})
            await player.publish("b", 1, {"Nats-TTL": "never"})
            await player.publish("c.d", 0, {"KV-Operation": "DEL", "Nats-TTL": "1s"})
        for player in players:
            await eventually(lambda player=player: _has_markers(player))  # type: ignore[misc]
        for subject in ("a", "b", "c.d"):
            expected, found = [await player.get({"last_by_subj": subject}) for player in players]
            assert found == expected
        await players[0].api("STREAM.DELETE.{}")
        await players[1].api("STREAM.DELETE.{}")


async def _has_markers(player: Player) -> bool:
    found = [await player.get({"last_by_subj": subject}) for subject in ("a", "c.d")]
    return all("Nats-Marker-Reason" in each.get("message", {}).get("hdrs", "") for each in found)


async def test_a_pull_without_wait_waits_while_too_much_is_unanswered(link: Link, memory: Link) -> None:
    for player in (Player(link, "AGREES"), Player(memory, "AGREES")):
        await player.make_stream({}, "CREATE")
        await player.make_consumer("c0", {"max_ack_pending": 1}, "create")
        await player.publish("a", 1, {})
        await player.publish("b", 1, {})
        assert len(await player.pull("c0", 1, 0)) == 1
        pulling = asyncio.create_task(player.pull("c0", 1, 0))
        await eventually(lambda player=player: _is_waiting(player))  # type: ignore[misc]
        await player.answer(0, b"+ACK")
        [delivery] = await pulling
        assert delivery == (True, "c0", (1, 2, 2, 0), "STREAM.b", 1, {})
        await player.api("STREAM.DELETE.{}")


async def _is_waiting(player: Player) -> bool:
    return bool((await player.api("CONSUMER.INFO.{}.c0"))["num_waiting"] == 1)


_CLOCK = {"allow_msg_schedules": True, "retention": "workqueue", "max_msgs_per_subject": 1}
_LONG_AGO, _FAR = "@at 2020-01-01T00:00:00.25Z", "@at 2100-01-01T00:00:00+09:00"


def _alarm(subject: str, when: str, target: str = "c.d", **more: str) -> Step:
    headers = {"Nats-Schedule": when, "Nats-Schedule-Target": target and "{}." + target, "X-Own": "1", **more}
    return Step("publish", (subject, 1, headers))


SCHEDULES = {
    "a due message is published once, with its own headers": [
        *(_alarm("a", _LONG_AGO), Step("get", ({"last_by_subj": "c.d"},)), Step("pull", ("c0", 2, 0))),
    ],
    "a later schedule replaces an earlier one": [
        *(_alarm("a", _FAR), _alarm("a", _FAR), _alarm("b", _FAR), Step("get", ({"last_by_subj": "a"},))),
    ],
    "a purge cancels a schedule": [_alarm("a", _FAR), Step("purge", ({"filter": "a"},))],
    "a plain message cancels a schedule": [_alarm("a", _FAR), _A],
    "a repeat is a duplicate": [_alarm("a", _FAR, **{"Nats-Msg-Id": "m"}), _alarm("a", _FAR, **{"Nats-Msg-Id": "m"})],
    "schedules that cannot be are refused": [
        *(_alarm("a", "@at soon"), _alarm("a", _FAR, ""), _alarm("a", _FAR, "a"), _alarm("a", _FAR, "*")),
        *(_alarm("a", "@at soon", **{"Nats-Expected-Last-Sequence": "9"}), _alarm("a", "@at 2100-01-01T00:00:00")),
        Step("publish", ("a", 1, {"Nats-Schedule": _FAR, "Nats-Schedule-Target": "elsewhere"})),
        Step("make_stream", ({**_CLOCK, "allow_msg_schedules": False}, "UPDATE")),
        Step("make_stream", ({**_CLOCK, "discard": "new"}, "UPDATE")),
    ],
}


@pytest.mark.parametrize("name", SCHEDULES)
async def test_both_servers_agree_about_schedules_that(link: Link, memory: Link, name: str) -> None:
    """The alarms of the clock: `Nats-Schedule: @at …` (ADR 45)."""
    real, own = Player(link, "AGREES"), Player(memory, "AGREES")
    begin = [
        Step("make_stream", (_CLOCK, "CREATE")),
        Step("make_consumer", ("c0", {"filter_subject": "c.>"}, "create")),
    ]
    try:
        for step in [*begin, *SCHEDULES[name]]:
            expected, found = await real.play(step), await own.play(step)
            assert found == expected, step
            await _settle(real, own, str(step))
    finally:
        await real.api("STREAM.DELETE.{}")


async def test_a_stream_without_schedules_refuses_them_on_both_servers(link: Link, memory: Link) -> None:
    for config in ({}, {"allow_msg_schedules": True, "discard": "new"}):
        players = [Player(each, "AGREES") for each in (link, memory)]
        made = [await player.make_stream(config, "CREATE") for player in players]
        assert made[0] == made[1]
        answers = [await player.play(_alarm("a", _FAR)) for player in players]
        assert answers[0] == answers[1]
        for player in players:
            await player.api("STREAM.DELETE.{}")
