"""The ports that an action may use, in one bundle. `wiring` fills it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from pyoco_server.config import NatsBackendConfig
from pyoco_server.ports.alarms.port import Alarms, NoAlarms
from pyoco_server.ports.dead_letters.port import DeadLetterIndex, DeadLetters
from pyoco_server.ports.flow_files import FlowFiles
from pyoco_server.ports.index.port import Index
from pyoco_server.ports.keys.port import Keys
from pyoco_server.ports.objects.kept import ConfirmedObjects
from pyoco_server.ports.objects.port import Objects
from pyoco_server.ports.outputs.port import Outputs
from pyoco_server.ports.priced import Priced
from pyoco_server.ports.programs import Programs
from pyoco_server.ports.queue.port import Queue
from pyoco_server.ports.receipts.port import Receipts
from pyoco_server.ports.registry.port import Registry
from pyoco_server.ports.resources.port import NoResources, Resources
from pyoco_server.ports.run_logs.port import RunLogs
from pyoco_server.ports.runs.port import Runs
from pyoco_server.ports.scheduling import Scheduling
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
    #: Results and outputs of runs that are too large for their records.
    outputs: Outputs
    #: Returns Unix seconds. Injected, so that a test can freeze it.
    clock: Callable[[], float]
    #: Returns a new UUID as text.
    new_id: Callable[[], str]
    #: Returns whether NATS is reachable right now; never blocks.
    is_up: Callable[[], bool]
    #: Returns a random number from 0.0 to 1.0, for the waits between tries.
    chance: Callable[[], float] = random.random
    #: The stores of priced runs and their money. None: this process does not handle priced runs.
    priced: Priced | None = None
    #: The stores of program jobs. None: this process does not handle programs.
    programs: Programs | None = None
    #: The alarms of the clock. Keepers only.
    alarms: Alarms = field(default_factory=NoAlarms)
    #: Schedules, and the keys of their writers. None: this process has nothing to do with them.
    scheduling: Scheduling | None = None
    #: What runs print. None: it is not captured (PYOCO_LOGS_ENABLED).
    logs: RunLogs | None = None
    #: The streams, buckets and object stores that this process uses.
    resources: Resources = field(default_factory=NoResources)


@dataclass(frozen=True, kw_only=True)
class DoorBackend(Backend):
    """What a door or a router has in addition."""

    keys: Keys
    #: Returns whether this process's latest writes were stored; never blocks.
    store_state: Callable[[], StoreState] = lambda: StoreState.TAKES


@dataclass(frozen=True, kw_only=True)
class OperatorBackend(Backend):
    """What an operator's command has in addition. It has no index, because the command is short-lived."""

    dead_letters: DeadLetters


@dataclass(frozen=True, kw_only=True)
class GatewayBackend(Backend):
    """What a gateway has in addition."""

    keys: Keys
    index: Index
    dead_letters: DeadLetters
    dead_letter_index: DeadLetterIndex
    flow_files: FlowFiles
    #: The submitted flow.yaml files that are known to be stored.
    kept_workflows: ConfirmedObjects = field(default_factory=ConfirmedObjects)
    receipts: Receipts
    wheel_files: WheelFiles
    wheel_history: WheelHistory
    #: Returns whether this gateway's latest writes were stored; never blocks.
    store_state: Callable[[], StoreState] = lambda: StoreState.TAKES
