"""What a simulation needs of each kind of run: its clients, and its promises."""

from __future__ import annotations

import abc
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from simulation.loop import SimLoop

if TYPE_CHECKING:
    from simulation.deployment import Deployment
    from simulation.faults import Fault

__all__ = ["Kind", "Problems"]


class Problems:
    """Broken promises, as they are noticed. The first one ends a simulation."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.found: list[str] = []

    def blame(self, text: str, run_id: str = "") -> None:
        self._loop.record("PROBLEM", what=text, run=run_id)
        self.found.append(f"{text} (run {run_id})" if run_id else text)


class Kind(abc.ABC):
    """One kind of run in one simulation. It is made before the deployment starts, so that it sees every write."""

    def __init__(self, deployment: Deployment, problems: Problems) -> None:
        self.deployment, self.problems = deployment, problems

    @classmethod  # noqa: B027 - most kinds have nothing to prepare
    def prepare(cls) -> None:
        """Called before each simulation, outside of virtual time: make what all simulations of a process share."""

    def faults(self, targets: Sequence[str], until: float) -> tuple[Fault, ...]:
        """What goes wrong in the stores of this kind alone. `Deployment.injectors` has to know each kind of fault."""
        return ()

    def close(self) -> None:  # noqa: B027 - most kinds have nothing to release
        """The simulation is over: release what it used."""

    @abc.abstractmethod
    def clients(self, until: float) -> list[Coroutine[Any, Any, None]]:
        """The clients that submit runs until then, in virtual seconds."""

    @property
    @abc.abstractmethod
    def is_settled(self) -> bool:
        """Whether everything has ended."""

    @abc.abstractmethod
    def conclude(self) -> None:
        """Faults are over and the deployment had time to recover: blame what has not come true."""
