"""What goes wrong, and when: drawn from the seed before the simulation starts, so that a shorter list can be tried."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simulation.deployment import Deployment
from simulation.network import Noise

__all__ = ["Fault", "draw", "inject"]


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong. `target` is a service; empty for what concerns the store."""

    at: float
    kind: str
    target: str = ""
    seconds: float = 0.0
    amount: float = 0.0

    def __str__(self) -> str:
        facts = [
            self.target,
            f"for {self.seconds:.2f} s" if self.seconds else "",
            f"{self.amount:g}" * bool(self.amount),
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
}
#: Around the timers that matter: heartbeats of a second, 20 s until a worker counts as gone, ack timers of 30 s.
_SECONDS = (0.2, 1.5, 4.0, 12.0, 25.0, 45.0, 80.0)


def draw(dice: random.Random, targets: Sequence[str], until: float) -> tuple[Fault, ...]:
    """Between none and a dozen faults before `until`, in order."""
    kinds = dice.choices(list(_WEIGHTS), weights=list(_WEIGHTS.values()), k=dice.randrange(13))
    return tuple(sorted((_draw(dice, kind, targets, until) for kind in kinds), key=lambda fault: fault.at))


def _draw(dice: random.Random, kind: str, targets: Sequence[str], until: float) -> Fault:
    at, target = round(dice.uniform(2.0, until), 3), dice.choice(list(targets))
    seconds = round(dice.choice(_SECONDS) * dice.uniform(0.5, 1.5), 3)
    if kind == "kill":
        return Fault(at, kind, target, amount=dice.randrange(1, 400))
    if kind in {"pause", "cut"}:
        return Fault(at, kind, target, seconds)
    if kind in {"lose requests", "lose replies"}:
        return Fault(at, kind, target, seconds, round(dice.choice((0.05, 0.3, 0.8)), 2))
    if kind == "delay messages":
        return Fault(at, kind, target, seconds, round(dice.choice((0.1, 1.0, 4.0)), 2))
    if kind == "skew clock":
        return Fault(at, kind, target, amount=round(dice.choice((-1, 1)) * dice.choice((1.0, 10.0, 120.0)), 1))
    return Fault(at, kind, seconds=min(seconds, 12.0) if kind == "restart store" else 0.0)


def inject(deployment: Deployment, fault: Fault) -> None:
    """Let it happen now. Whatever lasts ends by itself after its time."""
    deployment.loop.record("fault", what=str(fault).strip())
    if fault.kind in _INJECT:
        _INJECT[fault.kind](deployment, fault)
    else:
        deployment.injectors[fault.kind](fault)


def _kill(deployment: Deployment, fault: Fault) -> None:
    process = deployment.services[fault.target].process
    if process.is_alive:
        process.kill_after_steps(int(fault.amount))


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
    "pause": _pause,
    "cut": _cut,
    "lose requests": _noise,
    "lose replies": _noise,
    "delay messages": _noise,
    "redeliver": _redeliver,
    "restart store": _restart,
    "skew clock": _skew,
}
