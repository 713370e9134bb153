"""The NATS permissions of each role: the minimum that its work needs.

They are derived from the names in the settings and from what a role does with each stream, bucket and store. NATS
grants permissions by subject, so they cannot be finer: a role that may purge a store may purge all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pyoco_server.config import GridConfig, NatsBackendConfig, PricedConfig
from pyoco_server.core.holds import REBUILT
from pyoco_server.ports.nats.grid_resources import (
    ACL_BUCKET,
    CLIENTS_BUCKET,
    DOORS_BUCKET,
    LANES_BUCKET,
    ROUTES_BUCKET,
    SLOTS_BUCKET,
    all_resources,
)
from pyoco_server.ports.nats.resources import PRICED_BUCKET, SECRETS_BUCKET, log_subjects

__all__ = ["ROLES", "Rights", "Role", "inbox_prefix", "rights_of"]


class Role(StrEnum):
    GATEWAY = "gateway"
    WORKER = "worker"
    KEEPER = "keeper"
    DOOR = "door"
    ADMIN = "admin"


ROLES = tuple(Role)


@dataclass(frozen=True)
class Rights:
    """The permitted subjects, sorted. All others are refused."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def inbox_prefix(role: Role) -> str:
    """Return the role's own inbox prefix: a shared one would reveal all responses to other roles, even API keys."""
    return f"_INBOX_{role.value}"


@dataclass(frozen=True)
class _Place:
    """A stream and its subjects. Each method returns the subjects to publish to for one operation."""

    stream: str
    #: The prefix of its subjects, including the dot.
    prefix: str

    def info(self) -> set[str]:
        """Read its existence, its settings and its subjects."""
        return {f"$JS.API.STREAM.INFO.{self.stream}"}

    def read(self) -> set[str]:
        """Read one message, by subject or sequence."""
        return self.info() | {f"$JS.API.STREAM.MSG.GET.{self.stream}"}

    def watch(self) -> set[str]:
        """Read all messages and follow changes."""
        return self.read() | self._follow(f"{self.prefix}>")

    def _follow(self, subject: str) -> set[str]:
        return {
            f"$JS.API.CONSUMER.CREATE.{self.stream}.*.{subject}",
            f"$JS.API.CONSUMER.DELETE.{self.stream}.*",
            *_answers("FC", self.stream),
        }

    def write(self) -> set[str]:
        return {f"{self.prefix}>"}

    def remove(self) -> set[str]:
        """Delete one message, by sequence."""
        return {f"$JS.API.STREAM.MSG.DELETE.{self.stream}"}

    def ask_consumers(self) -> set[str]:
        return {f"$JS.API.CONSUMER.INFO.{self.stream}.*"}

    def take(self) -> set[str]:
        """Pull and acknowledge messages; the first process creates the consumer."""
        return (
            self.info()
            | self.ask_consumers()
            | {
                f"$JS.API.CONSUMER.CREATE.{self.stream}.>",
                f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.*",
                *_answers("ACK", self.stream),
            }
        )


@dataclass(frozen=True)
class _Store(_Place):
    """An object store."""

    def read(self) -> set[str]:
        """Read and list objects."""
        fetch = {f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.*"}
        return super().read() | self._follow(f"{self.prefix}C.*") | self._follow(f"{self.prefix}M.>") | fetch

    def purge(self) -> set[str]:
        """Delete the bytes of an object that was replaced or deleted."""
        return {f"$JS.API.STREAM.PURGE.{self.stream}"}


def _answers(kind: str, stream: str) -> set[str]:
    """Return the reply subjects that the server generates; newer servers put domain and account before the stream."""
    return {f"$JS.{kind}.{stream}.>", f"$JS.{kind}.*.*.{stream}.>"}


def _bucket(name: str) -> _Place:
    return _Place(f"KV_{name}", f"$KV.{name}.")


def _store(name: str) -> _Store:
    return _Store(f"OBJ_{name}", f"$O.{name}.")


def rights_of(role: Role, config: NatsBackendConfig, priced: PricedConfig, grid: GridConfig) -> Rights:
    """Return the permissions of a role.

    Those for priced runs are included if they are enabled, and those for their queue and files if these are in NATS.
    """
    if role is Role.ADMIN:  # creates, changes, backs up and deletes everything in the account
        own = (f"{inbox_prefix(role)}.>", "$JS.EVENT.>")
        return Rights((">",), tuple(sorted((*own, *_jobs(config, priced, grid)))))
    parts = [_FLOWS[role](config), _PROGRAMS[role](grid)]
    if role in (Role.GATEWAY, Role.KEEPER):  # missing resources are detected by name (SAFE-14)
        parts.append({"$JS.API.STREAM.NAMES"})
    if role is Role.KEEPER:
        parts.append(_creates(config, priced, grid))
    if priced.priced_enabled and role is not Role.DOOR:
        parts.append(_PRICED[role](priced))
    hears = [f"{inbox_prefix(role)}.>"]
    if role in (Role.WORKER, Role.DOOR):  # they wait for work
        hears.append(_WAKEUPS)
    return Rights(_together(parts), tuple(sorted(hears)))


def _creates(config: NatsBackendConfig, priced: PricedConfig, grid: GridConfig) -> set[str]:
    """Return the permission to recreate missing resources, only those that a keeper may recreate (SAFE-15)."""
    resources = all_resources(config, priced if priced.priced_enabled else None, grid)
    return {f"$JS.API.STREAM.CREATE.{each.name}" for each in resources if each.holds in REBUILT}


def _jobs(config: NatsBackendConfig, priced: PricedConfig, grid: GridConfig) -> list[str]:
    """Return the queues' subjects: a backup subscribes to them, because a job taken meanwhile is in no copy."""
    queues = {config.work_stream, priced.pack_stream, grid.exec_stream}
    resources = all_resources(config, priced if priced.priced_enabled else None, grid)
    return [subject for each in resources if each.name in queues for subject in each.config["subjects"]]


def _together(parts: Iterable[set[str]]) -> tuple[str, ...]:
    return tuple(sorted(set().union(*parts)))


#: Wake-up messages between processes that handle programs; never stored.
_WAKEUPS = "pyoco.exechint.*.*"


class _Flows:
    """The resources of flows."""

    def __init__(self, config: NatsBackendConfig) -> None:
        self.work = _Place(config.work_stream, f"{config.work_subject_prefix}.")
        self.dead_letters = _Place(config.dlq_stream, f"{config.dlq_subject_prefix}.")
        self.advisories = _Place(config.advisory_stream, "")
        self.alarms = _Place(config.clock_stream, f"{config.clock_stream}.at.")
        self.logs = _Place(config.logs_stream, log_subjects(config.logs_stream))
        self.runs = _bucket(config.runs_kv_bucket)
        self.workers = _bucket(config.workers_kv_bucket)
        self.keys = _bucket(config.auth_kv_bucket)
        self.receipts = _bucket(config.receipts_kv_bucket)
        self.schedules = _bucket(config.schedules_kv_bucket)
        self.wheel_history = _bucket(config.wheel_history_kv_bucket)
        self.wheels = _store(config.wheel_object_store_bucket)
        self.workflows = _store(config.workflow_object_store_bucket)
        self.outputs = _store(config.outputs_bucket)

    def shared(self) -> set[str]:
        """Every process checks that these exist, writes runs, and may write dead letters."""
        places: Sequence[_Place] = (
            self.work,
            self.dead_letters,
            self.advisories,
            self.alarms,
            self.logs,
            self.workers,
            self.wheels,
            self.workflows,
            self.outputs,
        )
        infos = set[str]().union(*(place.info() for place in places))
        return infos | self.runs.read() | self.runs.write() | self.dead_letters.write()

    def store_lines(self) -> set[str]:
        """Store what runs print, and delete the middle of what is too long."""
        return self.logs.read() | self.logs.write() | self.logs.remove()


def _gateway_of_flows(config: NatsBackendConfig) -> set[str]:
    flows = _Flows(config)
    return (
        flows.shared()
        | flows.runs.watch()
        | flows.work.write()
        | flows.work.read()
        | flows.work.ask_consumers()
        | flows.dead_letters.watch()
        | flows.dead_letters.remove()
        | flows.logs.watch()
        | flows.workers.watch()
        | flows.workers.write()  # to hide a worker
        | flows.keys.watch()
        | flows.keys.write()  # to store when a key was last used
        | flows.receipts.read()
        | flows.receipts.write()
        | flows.schedules.watch()
        | flows.schedules.write()
        | flows.wheel_history.watch()
        | flows.wheel_history.write()
        | _all_of(flows.wheels)
        | _all_of(flows.workflows)
        | flows.outputs.read()
    )


def _all_of(store: _Store) -> set[str]:
    return store.read() | store.write() | store.purge()


def _worker_of_flows(config: NatsBackendConfig) -> set[str]:
    flows = _Flows(config)
    workers = flows.workers.read() | flows.workers.watch() | flows.workers.write()
    return (
        flows.shared()
        | flows.work.take()
        | workers
        | flows.wheels.read()
        | _all_of(flows.outputs)
        | flows.store_lines()
    )


def _keeper_of_flows(config: NatsBackendConfig) -> set[str]:
    flows = _Flows(config)
    return (
        flows.shared()
        | flows.runs.watch()
        | flows.work.read()
        | flows.work.ask_consumers()
        | flows.work.remove()
        | flows.work.write()  # to queue the jobs of delayed runs
        | _scan_due(flows.work)
        | flows.advisories.take()
        | flows.alarms.write()
        | flows.alarms.take()
        | flows.schedules.watch()
        | flows.schedules.write()
        | flows.keys.watch()  # of the writers of schedules
        | flows.workers.watch()
        | flows.workers.write()
        | flows.wheels.read()
        | flows.wheels.purge()
        | flows.workflows.read()
        | flows.workflows.purge()
        | _all_of(flows.outputs)
    )


def _scan_due(work: _Place) -> set[str]:
    """Pull from a queue to make the server scan for due deliveries; a received job is put back."""
    return {
        f"$JS.API.CONSUMER.LIST.{work.stream}",
        f"$JS.API.CONSUMER.MSG.NEXT.{work.stream}.*",
        *_answers("ACK", work.stream),
    }


def _door_of_flows(config: NatsBackendConfig) -> set[str]:
    flows = _Flows(config)
    watches = flows.runs.watch() | flows.workers.watch() | flows.keys.watch()
    return flows.shared() | watches | flows.workers.read() | flows.workers.write() | flows.store_lines()


class _Programs:
    """The resources of programs."""

    def __init__(self, grid: GridConfig) -> None:
        self.jobs = _Place(grid.exec_stream, "pyoco.exec.")
        self.events = _Place(grid.exec_events_stream, "pyoco.execev.")
        self.lanes = _bucket(LANES_BUCKET)
        self.caps = _bucket(CLIENTS_BUCKET)
        self.slots = _bucket(SLOTS_BUCKET)
        self.doors = _bucket(DOORS_BUCKET)
        self.acl = _bucket(ACL_BUCKET)
        self.routes = _bucket(ROUTES_BUCKET)
        self.artifacts = _store(grid.exec_artifacts_bucket)

    def shared(self) -> set[str]:
        """Every process follows the assignment of slots, and may have to end a job."""
        followed = (self.lanes, self.caps, self.slots, self.doors, self.acl)
        watches = set[str]().union(*(place.watch() for place in followed))
        return (
            watches
            | self.slots.write()
            | self.routes.info()
            | self.events.info()
            | self.events.write()
            | self.jobs.read()
            | self.jobs.remove()
            | self.jobs.ask_consumers()
            | self.artifacts.read()
            | {_WAKEUPS}
        )

    def submit(self) -> set[str]:
        """Submit a job, or queue it again after its message was lost."""
        return self.jobs.write() | self.lanes.write()


def _gateway_of_programs(grid: GridConfig) -> set[str]:
    programs = _Programs(grid)
    return (
        programs.shared()
        | programs.submit()
        | programs.caps.write()
        | programs.acl.write()
        | programs.events.watch()
        | _all_of(programs.artifacts)
    )


def _worker_of_programs(grid: GridConfig) -> set[str]:
    programs = _Programs(grid)
    return programs.shared() | programs.jobs.take() | programs.artifacts.write()


def _keeper_of_programs(grid: GridConfig) -> set[str]:
    programs = _Programs(grid)
    return programs.shared() | programs.submit() | programs.artifacts.purge()


def _door_of_programs(grid: GridConfig) -> set[str]:
    programs = _Programs(grid)
    return (
        programs.shared()
        | programs.submit()
        | programs.jobs.take()
        | programs.caps.write()
        | programs.doors.write()
        | programs.routes.read()
        | programs.routes.write()
        | _all_of(programs.artifacts)
    )


class _Priced:
    """The resources of priced runs that are in NATS."""

    def __init__(self, priced: PricedConfig) -> None:
        self.jobs = _Place(priced.pack_stream, priced.pack_subject)
        self.dead_letters = _Place(f"{priced.pack_stream}_DLQ", f"{priced.pack_subject}.dlq")
        self.results = _store(priced.results_bucket)
        self.inputs = _store(priced.pack_input_bucket)
        self.secrets = _bucket(SECRETS_BUCKET)
        self._shared = _bucket(PRICED_BUCKET)
        self._has_queue, self._has_files = not priced.pack_queue_url, not priced.results_url
        self.draws_secret = not (priced.results_url or priced.results_secret)

    def of_queue(self, rights: set[str]) -> set[str]:
        """Every process checks that the queue exists, and creates or corrects its consumer."""
        bound = {f"$JS.API.CONSUMER.CREATE.{self.jobs.stream}.*"}
        shared = self.jobs.info() | self.dead_letters.info() | self.jobs.ask_consumers() | bound
        return rights | shared if self._has_queue else set()

    def of_files(self, rights: set[str]) -> set[str]:
        return rights | self.results.info() | self.inputs.info() if self._has_files else set()

    def know_ledger(self) -> set[str]:
        """Every process compares its ledger with the stored identity, and tests whether writes are stored."""
        return self._shared.read() | {f"{self._shared.prefix}probe.>"}

    def remember_ledger(self) -> set[str]:
        return self._shared.read() | self._shared.write()

    def send(self) -> set[str]:
        """Publish to one subject, not to those below it, which are the dead letters'."""
        return {self.jobs.prefix}

    def bury(self) -> set[str]:
        return {self.dead_letters.prefix}


def _gateway_of_priced(priced: PricedConfig) -> set[str]:
    part = _Priced(priced)
    secret = part.secrets.read() | part.secrets.write() if part.draws_secret else set()
    files = part.of_files(part.results.read() | _all_of(part.inputs))
    return part.of_queue(part.send()) | files | secret | part.remember_ledger()


def _worker_of_priced(priced: PricedConfig) -> set[str]:
    part = _Priced(priced)
    queue = part.of_queue(part.jobs.take() | part.bury())
    files = part.of_files(part.results.read() | part.results.write() | part.inputs.read())
    return queue | files | part.know_ledger()


def _keeper_of_priced(priced: PricedConfig) -> set[str]:
    part = _Priced(priced)
    files = part.of_files(part.results.read() | _all_of(part.inputs))
    return part.of_queue(part.send()) | files | part.know_ledger()


_FLOWS = {
    Role.GATEWAY: _gateway_of_flows,
    Role.WORKER: _worker_of_flows,
    Role.KEEPER: _keeper_of_flows,
    Role.DOOR: _door_of_flows,
}
_PROGRAMS = {
    Role.GATEWAY: _gateway_of_programs,
    Role.WORKER: _worker_of_programs,
    Role.KEEPER: _keeper_of_programs,
    Role.DOOR: _door_of_programs,
}
_PRICED = {Role.GATEWAY: _gateway_of_priced, Role.WORKER: _worker_of_priced, Role.KEEPER: _keeper_of_priced}
