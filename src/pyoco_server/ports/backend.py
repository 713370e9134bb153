"""The bundle of ports an action may reach. `wiring` fills it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pyoco_server.config import NatsBackendConfig
from pyoco_server.ports.dead_letters.port import DeadLetterIndex, DeadLetters
from pyoco_server.ports.flow_files import FlowFiles
from pyoco_server.ports.index.port import Index
from pyoco_server.ports.keys.port import Keys
from pyoco_server.ports.objects.kept import Kept
from pyoco_server.ports.objects.port import Objects
from pyoco_server.ports.priced import Priced
from pyoco_server.ports.programs import Programs
from pyoco_server.ports.queue.port import Queue
from pyoco_server.ports.receipts.port import Receipts
from pyoco_server.ports.registry.port import Registry
from pyoco_server.ports.resources.port import NoResources, Resources
from pyoco_server.ports.runs.port import Runs
from pyoco_server.ports.store_state import StoreState
from pyoco_server.ports.wheel_files.port import WheelFiles
from pyoco_server.ports.wheel_history.port import WheelHistory

__all__ = ["Backend", "DoorBackend", "GatewayBackend", "OperatorBackend"]


@dataclass(frozen=True, kw_only=True)
class Backend:
    """What every process has: worker, keeper and gateway."""

    config: NatsBackendConfig
    runs: Runs
    queue: Queue
    registry: Registry
    #: Registered wheels, by file name.
    wheels: Objects
    #: Submitted flow.yaml files by their sha256, for re-runs.
    workflows: Objects
    #: Unix seconds. Passed in, so that a test can hold it still.
    clock: Callable[[], float]
    #: A fresh UUID as text.
    new_id: Callable[[], str]
    #: Whether NATS can be reached right now; never waits.
    is_up: Callable[[], bool]
    #: Where priced runs and their money are; None: this process does not deal with them.
    priced: Priced | None = None
    #: Where jobs of programs are; None: this process does not deal with them.
    programs: Programs | None = None
    #: The streams, buckets and object stores that this process uses.
    resources: Resources = field(default_factory=NoResources)


@dataclass(frozen=True, kw_only=True)
class DoorBackend(Backend):
    """What a door or a router has besides."""

    keys: Keys
    #: Whether what this process wrote last was stored; never waits.
    store_state: Callable[[], StoreState] = lambda: StoreState.TAKES


@dataclass(frozen=True, kw_only=True)
class OperatorBackend(Backend):
    """What an operator's command has besides: no index, since it comes and goes."""

    dead_letters: DeadLetters


@dataclass(frozen=True, kw_only=True)
class GatewayBackend(Backend):
    """What a gateway has besides."""

    keys: Keys
    index: Index
    dead_letters: DeadLetters
    dead_letter_index: DeadLetterIndex
    flow_files: FlowFiles
    #: Which of the submitted flow.yaml files are known to be there.
    kept_workflows: Kept = field(default_factory=Kept)
    receipts: Receipts
    wheel_files: WheelFiles
    wheel_history: WheelHistory
    #: Whether what this gateway wrote last was stored; never waits.
    store_state: Callable[[], StoreState] = lambda: StoreState.TAKES
