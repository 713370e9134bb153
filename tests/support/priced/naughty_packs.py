"""Packs that behave as badly as packs can. Pack processes load them with `tests` on PYTHONPATH."""

from __future__ import annotations

import contextlib
import ctypes
import decimal
import io
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from pyoco_server.config.packs import PackConfig
from pyoco_server.core.priced.envelope import Artifact, PackResult
from pyoco_server.executors.host.inside import Channel
from pyoco_server.executors.packs import wire
from pyoco_server.executors.packs.port import Context, Execute, Executed, PackError, PackUnavailable
from pyoco_server.wiring import packs as wiring_packs
from support.strays import inherited_descriptors, strays

__all__ = ["EXECUTORS", "LOADER", "executors"]

LOADER = "support.priced.naughty_packs:executors"


def result(data: Any = None, cost: Any = 7, **more: Any) -> PackResult:
    return PackResult(data={} if data is None else data, actual_cost_usd_micros=cost, **more)


def tells(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    """Everything that a pack receives."""
    return result(
        {
            "inputs": dict(inputs),
            "run_id": ctx.run_id,
            "tenant_id": ctx.tenant_id,
            "trace_id": ctx.trace_id,
            "seconds_left": ctx.seconds_left,
            "min_reliability_score": ctx.min_reliability_score,
            "reserved_usd_micros": ctx.reserved_usd_micros,
            "artifacts": dict(ctx.artifacts),
            "is_cancelled": ctx.cancelled.is_set(),
            "pid": os.getpid(),
            "environment": dict(os.environ),
            "arguments": sys.argv,
        },
        artifacts=(
            Artifact(name="a.md", content_type="text/markdown", data=b"# a"),
            Artifact(name="b.bin", content_type="application/octet-stream", data=bytes(range(256))),
        ),
        discard_log=({"url": "u", "reason": "r"},),
        tokens_consumed=3,
        reliability_score=0.5,
        meta={"how": ["slowly", 1]},
    )


def sleeps(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    """Minds its cancel."""
    if path := inputs.get("begun"):
        Path(path).write_text(str(os.getpid()))
    if ctx.cancelled.wait(inputs.get("seconds", 60)):
        raise PackError("CANCELLED", "it was told to stop")
    return result({"slept": True})


def ignores_cancel(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    if path := inputs.get("begun"):
        Path(path).write_text(str(os.getpid()))
    time.sleep(60)
    return result()


def answers_late(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    ctx.cancelled.wait(60)
    return result({"late": True})


def refuses(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    raise PackError("PAGE_UNREADABLE", "page 3 cannot be read")


def lacks_a_model(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    raise PackUnavailable("MODEL_MISSING", "the model is not there")


def refuses_oddly(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    raise PackError("PAGE_UNREADABLE", "page \x00\ud800\x1b[2J\n3" + "x" * 1000)


def raises(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    sys.stderr.write(f"{inputs}\n")
    print(inputs)
    raise ValueError(f"cannot do {inputs}")


def exits(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    sys.exit(4)


def leaves(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    os._exit(3)


def is_killed(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    os.kill(os.getpid(), signal.SIGKILL)
    return result()


def crashes(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    ctypes.string_at(0)
    return result()


def leaves_a_child(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    Path(inputs["begun"]).write_text(str(child.pid))
    time.sleep(60)
    return result()


def leaves_strays(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    """And ends, or works on."""
    strays(inputs["token"], inputs.get("note", ""), inputs.get("seconds", 0.0))
    return result()


def tells_descriptors(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    return result({"descriptors": inherited_descriptors()})


def closes_its_lines(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    for fd in map(int, sys.argv[1:3]):
        os.close(fd)
    time.sleep(60)
    return result()


def writes_rubbish(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    with socket.socket(fileno=os.dup(int(sys.argv[1]))) as line:
        line.sendall(b"\x04\0\0\0ouch")
    time.sleep(60)
    return result()


def returns_64_mib(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    return result(artifacts=(Artifact(name="big", content_type="text/plain", data=bytes(64 << 20)),))


def returns_32_mib(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    """To the byte what an answer may hold."""

    def of(size: int) -> PackResult:
        return result(artifacts=(Artifact(name="big", content_type="text/plain", data=bytes(size)),))

    size = wire.ANSWER_BYTES_MAX - 1000
    return of(size + wire.ANSWER_BYTES_MAX - len(wire.pack_answer(Executed(of(size)))))


def returns_9_mib(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    return result(
        {"text": "x" * (8 << 20), "short": 1}, artifacts=(Artifact(name="b", content_type="a/b", data=bytes(1 << 20)),)
    )


def eats_memory(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    held = [bytearray(1 << 24) for _ in range(100_000)]
    return result({"n": len(held)})


KEPT: list[bytes] = []


def keeps_much(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    KEPT.append(b"x" * (300 << 20))
    raise PackError("TOO_MUCH", "with all of it still in hand")


def finds(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    """What a call finds around it. It has to be able to print."""
    print("found", flush=True)
    alarm = signal.getitimer(signal.ITIMER_REAL)[0]
    return result({"cwd": str(Path.cwd()), "alarm": alarm, "digits": decimal.getcontext().prec, "pid": os.getpid()})


def goes_away(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    """To a directory that is removed behind its back."""
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
    return result()


def sets_an_alarm(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    signal.setitimer(signal.ITIMER_REAL, 600.0)
    return result()


def rounds(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    decimal.getcontext().prec = 3
    return result()


def captures_its_streams(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    sys.stdout = io.StringIO()
    sys.stdout.close()
    return result()


def diverts_its_streams(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    """Those of what it starts, too."""
    with Path(inputs["to"]).open("w") as file:
        os.dup2(file.fileno(), 1)
    return result()


def closes_its_streams(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    sys.stdout.close()
    for fd in range(3):
        with contextlib.suppress(OSError):  # the first line has closed it
            os.close(fd)
    return result()


#: What is wrong, and what a pack returns then.
WRONG: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "a dict": lambda: {"data": {}},
    "a list as data": lambda: result([]),
    "a cost in text": lambda: result(cost="7"),
    "half a micro": lambda: result(cost=0.5),
    "a negative cost": lambda: result(cost=-1),
    "a true cost": lambda: result(cost=True),
    "no cost": lambda: result(cost=None),
    "negative tokens": lambda: result(tokens_consumed=-1),
    "a score of two": lambda: result(reliability_score=2),
    "a score in text": lambda: result(reliability_score="1"),
    "NaN": lambda: result({"n": float("nan")}),
    "a half character": lambda: result({"n": "\ud800"}),
    "a number as a name": lambda: result({1: 1}),
    "an object inside": lambda: result({"n": object()}),
    "a list as meta": lambda: result(meta=[]),
    "a number as a name in meta": lambda: result(meta={"a": {1: 1}}),
    "text as a log": lambda: result(discard_log="text"),
    "text in a log": lambda: result(blocked_log=["text"]),
    "text as an artifact": lambda: result(artifacts=("text",)),
    "an artifact of text": lambda: result(artifacts=(Artifact(name="a", content_type="a/b", data=cast(Any, "text")),)),
    "a nameless artifact": lambda: result(artifacts=(Artifact(name=cast(Any, 1), content_type="a/b", data=b""),)),
    "itself": lambda: result(_circle()),
    "a deep well": lambda: result(_well()),
}


def _circle() -> dict[str, Any]:
    circle: dict[str, Any] = {}
    circle["circle"] = circle
    return circle


def _well() -> dict[str, Any]:
    well: dict[str, Any] = {}
    for _ in range(100_000):
        well = {"d": well}
    return well


def returns_wrong(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    return cast(PackResult, WRONG[inputs["what"]]())


EXECUTORS: dict[str, Execute] = {
    each.__name__: each
    for each in (
        tells, sleeps, ignores_cancel, answers_late, refuses, lacks_a_model, refuses_oddly, raises, exits,
        leaves, is_killed, crashes, leaves_a_child, leaves_strays, closes_its_lines, writes_rubbish, returns_64_mib,
        returns_9_mib, eats_memory, returns_wrong, keeps_much, finds, goes_away, sets_an_alarm, rounds,
        captures_its_streams, diverts_its_streams, closes_its_streams, returns_32_mib, tells_descriptors,
    )
}  # fmt: skip


def chosen(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    """For the worker's tests: a decision whose question names what happens; any other is the real one."""
    word, _, rest = str(inputs.get("question", "")).partition(" ")
    if word not in EXECUTORS:
        return wiring_packs.executors({"decision": ""}, PackConfig())["decision"](inputs, ctx)
    return EXECUTORS[word]({**inputs, "begun": rest} if rest else inputs, ctx)


EXECUTORS["decision"] = chosen


def executors(packs: Mapping[str, str], config: PackConfig) -> dict[str, Execute]:
    """What a process has to call. `place` names an executor that every process has, or is a keyword."""
    if "bad import" in packs.values():
        sys.exit("I will not be imported")
    if "claims more" in packs.values():
        Channel(os.dup(int(sys.argv[1]))).send(wire.pack_ready((*packs, "decision")))
    if "slow import" in packs.values():
        time.sleep(60)
    told: dict[str, Execute] = {
        "knows": lambda inputs, ctx: result({"packs": dict(packs), "key": config.decision_api_key, "pid": os.getpid()})
    }
    return {name: (told | EXECUTORS)[place or name] for name, place in packs.items()}
