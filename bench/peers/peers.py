"""The peers: where their parts are, how their workers start, and what they keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["PEERS", "Peer"]

Server = Literal["redis", "nats", "postgres", "prefect"]
#: It writes two lines for each job.
_ARQ_LOGS = ("--custom-log-dict", "bench.peers.programs.on_arq.LOGS")
_REDIS = "Redis protocol (Valkey), AOF synced each second"


@dataclass(frozen=True)
class Peer:
    #: As it is shown and asked for; its requirements and its environment are named alike.
    name: str
    module: str
    servers: tuple[Server, ...]
    #: What follows `python`. {n} is the number of processes, when one command starts them all.
    worker: tuple[str, ...]
    #: Whether that command starts all of them.
    starts_all: bool
    #: How many jobs are drained, empty ones and chains.
    noops: int
    chains: int
    #: How many are waited for, one after another.
    waits: int
    durability: str
    #: What is kept of a job that has ended.
    keeps: str
    #: One that is slow by orders of magnitude is not measured in every round.
    rounds_max: int = 99

    def workers(self, processes: int) -> list[list[str]]:
        one = [word.format(n=processes) for word in self.worker]
        return [one] if self.starts_all else [one] * processes


def _module(name: str) -> str:
    return f"bench.peers.programs.{name}"


PEERS = (
    Peer(
        name="celery",
        module=_module("on_celery"),
        servers=("redis",),
        worker=(
            *("-m", "celery", "-A", "bench.peers.programs.on_celery:celery", "worker", "--loglevel=ERROR"),
            *("--concurrency={n}", "--without-gossip", "--without-mingle", "--without-heartbeat"),
        ),
        starts_all=True,
        noops=800,
        chains=300,
        waits=150,
        durability=f"{_REDIS}; acknowledged before it runs",
        keeps="state, result, traceback, time of the end; for a day",
    ),
    Peer(
        name="dramatiq",
        module=_module("on_dramatiq"),
        servers=("redis",),
        worker=("-m", "dramatiq", "bench.peers.programs.on_dramatiq", "-p", "{n}", "-t", "8"),
        starts_all=True,
        noops=2000,
        chains=700,
        waits=150,
        durability=f"{_REDIS}; acknowledged after it ran; retried with a pause",
        keeps="result, for ten minutes; no state, no times",
    ),
    Peer(
        name="arq",
        module=_module("on_arq"),
        servers=("redis",),
        worker=("-m", "arq", "bench.peers.programs.on_arq.WorkerSettings", *_ARQ_LOGS),
        starts_all=False,
        noops=1200,
        chains=400,
        waits=150,
        durability=f"{_REDIS}; run again after a time limit",
        keeps="result, arguments, tries, times; for an hour",
    ),
    Peer(
        name="rq",
        module=_module("on_rq"),
        servers=("redis",),
        worker=("-m", "rq.cli", "worker", "--worker-class", "rq.worker.SimpleWorker", "--quiet", "bench"),
        starts_all=False,
        noops=500,
        chains=150,
        waits=150,
        durability=f"{_REDIS}; no process of its own for a job (SimpleWorker)",
        keeps="status, result, arguments, worker, times; for 500 s",
    ),
    Peer(
        name="taskiq-nats",
        module=_module("on_taskiq"),
        servers=("nats", "redis"),
        worker=(
            *("-m", "taskiq", "worker", "bench.peers.programs.on_taskiq:broker", "--workers", "{n}"),
            *("--max-async-tasks", "100", "--log-level", "ERROR"),
        ),
        starts_all=True,
        noops=1500,
        chains=500,
        waits=150,
        durability=f"JetStream, defaults; results: {_REDIS}; acknowledged once the result is stored",
        keeps="result, error, duration; until it is deleted",
    ),
    Peer(
        name="procrastinate",
        module=_module("on_procrastinate"),
        servers=("postgres",),
        worker=("-m", "procrastinate", "--app", "bench.peers.programs.on_procrastinate.jobs", "worker", "-c", "16"),
        starts_all=False,
        noops=500,
        chains=150,
        waits=100,
        durability="PostgreSQL, each commit synced",
        keeps="status, arguments, attempts, times of each state; no result",
    ),
    Peer(
        name="prefect",
        module=_module("on_prefect"),
        servers=("prefect",),
        worker=("-m", "bench.peers.programs.on_prefect", "serve"),
        starts_all=False,
        noops=40,
        chains=10,
        waits=10,
        durability="Prefect's server on SQLite (WAL)",
        keeps="every state with its time, result, arguments, logs, a record for each task of a flow",
        rounds_max=1,
    ),
)
