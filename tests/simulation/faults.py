"""What goes wrong, and when: drawn from the seed before the simulation starts, so that a shorter list can be tried."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simulation.deployment import Deployment
from simulation.network import Countdown, Noise
from simulation.process import Process

__all__ = ["Fault", "draw", "inject"]


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong. `target` is a service; empty for what concerns the store."""

    at: float
    kind: str
    target: str = ""
    seconds: float = 0.0
    amount: float = 0.0
    #: How the subjects begin of the writes that count; empty: all writes.
    writes: str = ""

    def __str__(self) -> str:
        facts = [
            self.target,
            f"for {self.seconds:.2f} s" if self.seconds else "",
            f"{self.amount:g}" * bool(self.amount),
            self.writes,
        ]
        return " ".join([f"{self.at:8.2f}", self.kind, *filter(None, facts)])

    @property
    def ends_at(self) -> float:
        return self.at + self.seconds


#: How likely each kind is.
_WEIGHTS = {
    "kill": 6,
    "pause": 4,
    "cut": 3,
    "lose requests": 3,
    "lose replies": 4,
    "delay messages": 2,
    "redeliver": 3,
    "restart store": 1,
    "skew clock": 2,
    "duplicate messages": 2,
    "kill after write": 3,
    "pause after write": 3,
    "kill host": 3,
}
#: Around the timers that matter: heartbeats of a second, 20 s until a worker counts as gone, ack timers of 30 s.
_SECONDS = (0.2, 1.5, 4.0, 12.0, 25.0, 45.0, 80.0)


def draw(dice: random.Random, targets: Sequence[str], until: float) -> tuple[Fault, ...]:
    """Up to six faults before `until` without a plan, and up to four scenes; in order."""
    kinds = dice.choices(list(_WEIGHTS), weights=list(_WEIGHTS.values()), k=dice.randrange(7))
    drawn = [_draw(dice, kind, targets, until) for kind in kinds]
    for scene in dice.choices(_SCENES, k=dice.randrange(5)):
        drawn += scene(dice, targets, round(dice.uniform(2.0, until), 3))
    return tuple(sorted(drawn, key=lambda fault: fault.at))


#: Records of runs, slots, and everything else.
_WRITES = ("", "$KV.pyoco_runs.", "$KV.pyoco_exec_slots.")

# Scenes: faults that do harm together, at the times that matter.


def _stand_still(dice: random.Random, targets: Sequence[str], at: float) -> list[Fault]:
    """A worker stands still, perhaps right after a write, until its leases have ended and its jobs are delivered
    again."""
    worker = _one_of(dice, targets, "worker")
    seconds, steps = round(dice.uniform(*dice.choice(((8.0, 30.0), (35.0, 80.0)))), 3), dice.randrange(5)
    pause = Fault(at, "pause", worker, seconds)
    if steps:
        pause = Fault(at, "pause after write", worker, seconds, steps, dice.choice(_WRITES))
    return [pause, Fault(round(at + dice.uniform(0.3, 0.9) * seconds, 3), "redeliver")]


def _wrong_clock(dice: random.Random, targets: Sequence[str], at: float) -> list[Fault]:
    """The clock of a process runs ahead of the others by more than a lease; jobs are delivered again."""
    target = _one_of(dice, targets, dice.choice(("keeper", "worker")))
    later = round(at + dice.uniform(1.0, 20.0), 3)
    return [Fault(at, "skew clock", target, amount=round(dice.uniform(30.0, 120.0), 1)), Fault(later, "redeliver")]


def _die_between(dice: random.Random, targets: Sequence[str], at: float) -> list[Fault]:
    """A process dies again and again, each time right after a write took effect."""
    target = _one_of(dice, targets, dice.choice(("worker", "worker", "gateway", "keeper")))
    writes = dice.choice(_WRITES)
    return [
        Fault(
            round(at + _AFTER_WRITE_SECONDS * number, 3), "kill after write", target, 0.0, dice.randrange(1, 6), writes
        )
        for number in range(5)
    ]


def _old_news(dice: random.Random, targets: Sequence[str], at: float) -> list[Fault]:
    """What a process hears is some seconds old."""
    target = _one_of(dice, targets, dice.choice(("worker", "gateway")))
    return [Fault(at, "delay messages", target, round(dice.uniform(5.0, 20.0), 3), dice.choice((1.0, 4.0)))]


def _long_outage(dice: random.Random, targets: Sequence[str], at: float) -> list[Fault]:
    """A worker gives up all tries to write, and comes back."""
    worker, kind = _one_of(dice, targets, "worker"), dice.choice(("cut", "lose replies", "lose requests"))
    return [Fault(at, kind, worker, round(dice.uniform(60.0, 110.0), 3), 0.0 if kind == "cut" else 0.95)]


_SCENES = (_stand_still, _stand_still, _wrong_clock, _die_between, _old_news, _long_outage)


def _one_of(dice: random.Random, targets: Sequence[str], kind: str) -> str:
    return dice.choice([name for name in targets if name.startswith(kind)] or list(targets))


#: How strong each kind may be: steps, messages, likelihoods, seconds.
_AMOUNTS: dict[str, Sequence[float]] = {
    "kill": range(1, 400),
    "kill after write": range(1, 30),
    "pause after write": range(1, 30),
    "kill host": range(8),
    "lose requests": (0.05, 0.3, 0.8),
    "lose replies": (0.05, 0.3, 0.8),
    "delay messages": (0.1, 1.0, 4.0),
    "duplicate messages": (0.1, 0.5, 1.0),
    "skew clock": (-120.0, -10.0, -1.0, 1.0, 10.0, 120.0),
}
#: Kinds that happen in one moment.
_MOMENTARY = frozenset({"kill", "kill after write", "kill host", "redeliver", "skew clock"})
#: Kinds that concern the store.
_OF_STORE = frozenset({"redeliver", "restart store"})
#: Kinds that neither hold up messages nor a process.
_SILENT = frozenset({"kill host", "redeliver", "skew clock"})
_RESTART_SECONDS_MAX = 12.0
#: A process that writes nothing for so long is left alone.
_AFTER_WRITE_SECONDS = 12.0


def _draw(dice: random.Random, kind: str, targets: Sequence[str], until: float) -> Fault:
    at = round(dice.uniform(2.0, until), 3)
    target = _one_of(dice, targets, "worker" if kind == "kill host" else "")
    seconds = round(dice.choice(_SECONDS) * dice.uniform(0.5, 1.5), 3)
    if kind == "restart store":
        seconds = min(seconds, _RESTART_SECONDS_MAX)
    amount = dice.choice(_AMOUNTS[kind]) if kind in _AMOUNTS else 0.0
    return Fault(
        at, kind, "" if kind in _OF_STORE else target, 0.0 if kind in _MOMENTARY else seconds, round(amount, 2)
    )


def inject(deployment: Deployment, fault: Fault) -> None:
    """Let it happen now. Whatever lasts ends by itself after its time."""
    deployment.loop.record("fault", what=str(fault).strip())
    if fault.kind not in _SILENT:
        deployment.trouble.note(fault.target, fault.seconds)
    if fault.kind in _INJECT:
        _INJECT[fault.kind](deployment, fault)
    else:
        deployment.injectors[fault.kind](fault)


def _kill(deployment: Deployment, fault: Fault) -> None:
    process = deployment.services[fault.target].process
    if process.is_alive:
        process.kill_after_steps(int(fault.amount))


def _stop_after_write(deployment: Deployment, fault: Fault) -> None:
    def stop(process: Process) -> None:
        if fault.kind == "kill after write":
            process.kill()
        else:
            process.pause()
            deployment.loop.call_later(fault.seconds, process.resume)

    deployment.nats.after_write[fault.target] = Countdown(int(fault.amount), fault.writes, stop)
    deployment.trouble.note(fault.target, _AFTER_WRITE_SECONDS + fault.seconds)
    deployment.loop.call_later(_AFTER_WRITE_SECONDS, deployment.nats.after_write.pop, fault.target, None)


def _kill_host(deployment: Deployment, fault: Fault) -> None:
    """One of those of this worker, if it has any."""
    hosts = deployment.hosts_of(fault.target)
    if hosts:
        hosts[int(fault.amount) % len(hosts)].kill()


def _pause(deployment: Deployment, fault: Fault) -> None:
    process = deployment.services[fault.target].process
    process.pause()
    deployment.loop.call_later(fault.seconds, process.resume)


def _cut(deployment: Deployment, fault: Fault) -> None:
    deployment.nats.shut_out.add(fault.target)
    deployment.nats.cut_process(fault.target)
    deployment.loop.call_later(fault.seconds, deployment.nats.shut_out.discard, fault.target)


def _noise(deployment: Deployment, fault: Fault) -> None:
    noise = Noise(fault.target)
    if fault.kind == "lose requests":
        noise.lost_up = fault.amount
    elif fault.kind == "lose replies":
        noise.lost_down = fault.amount
    elif fault.kind == "duplicate messages":
        noise.twice = fault.amount
    else:
        noise.late_seconds = fault.amount
    deployment.wire.noise.append(noise)
    deployment.loop.call_later(fault.seconds, deployment.wire.noise.remove, noise)


def _redeliver(deployment: Deployment, _: Fault) -> None:
    deployment.nats.redeliver_all()


def _restart(deployment: Deployment, fault: Fault) -> None:
    deployment.nats.stop()
    deployment.loop.call_later(fault.seconds, deployment.nats.start)


def _skew(deployment: Deployment, fault: Fault) -> None:
    deployment.services[fault.target].process.skew_seconds += fault.amount


_INJECT: dict[str, Callable[[Deployment, Fault], None]] = {
    "kill": _kill,
    "kill after write": _stop_after_write,
    "pause after write": _stop_after_write,
    "kill host": _kill_host,
    "pause": _pause,
    "cut": _cut,
    "lose requests": _noise,
    "lose replies": _noise,
    "delay messages": _noise,
    "duplicate messages": _noise,
    "redeliver": _redeliver,
    "restart store": _restart,
    "skew clock": _skew,
}
