"""What the shim does not have, and what to use instead (APP-20)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyoco_server.errors import CATALOGUE, NotOffered

__all__ = ["APP", "CONF", "MODULE", "RESULT", "SENDING", "SIGNATURE", "TASK", "TASK_OPTIONS", "refusal", "refuse_all"]

_REMOVE = "remove it"
_MAP = "submit one task for each item: group(task.s(item) for item in items), or `flow.map` of an App"
_LINK = "use chain(task.s(), callback.s()); for failures, a look at AsyncResult or the dead letters"
_SERVER = "remove it, and set PYOCO_SERVER_URL: runs and their results are in the server"
_ROUTES = "name the queue at the call: apply_async(queue=...); a worker serves it as its tag"
_SIGNALS = "call the code in the task, or read the events of the server"
_ACKS = "remove it: a run is acknowledged when its end is stored"
_REPLACE = "return the value, and submit what comes next as a chain"

TASK_OPTIONS: Mapping[str, str] = {
    "acks_late": _ACKS,
    "base": "call the shared code in the task",
    "ignore_result": "remove it: results are kept as long as their run",
    "queue": _ROUTES,
    "rate_limit": "limit the slots of the workers that serve its queue",
    "reject_on_worker_lost": _ACKS,
    "retry_backoff_max": "remove it: waits grow to 600 seconds at most",
    "retry_jitter": "remove it: waits vary by a tenth",
    "retry_kwargs": "max_retries= and default_retry_delay=",
    "serializer": "remove it: values are JSON with dates, decimals, bytes and the like",
    "soft_time_limit": "time_limit=, which ends the process of the task",
    "typing": "remove it: arguments are always checked against the signature",
}
SENDING: Mapping[str, str] = {
    "add_to_parent": _REMOVE,
    "chord": _LINK,
    "compression": _REMOVE,
    "expires": "revoke the run, or let the task return at once when it is too late",
    "headers": "pass it as an argument",
    "ignore_result": TASK_OPTIONS["ignore_result"],
    "link": _LINK,
    "link_error": _LINK,
    "priority": "a queue of its own, with workers of its own",
    "retry": "remove it: the client tries again",
    "retry_policy": "remove it: the client tries again",
    "routing_key": _ROUTES,
    "exchange": _ROUTES,
    "serializer": TASK_OPTIONS["serializer"],
    "soft_time_limit": "@app.task(time_limit=...)",
    "time_limit": "@app.task(time_limit=...)",
}
TASK: Mapping[str, str] = {
    "apply": "call the task itself",
    "backend": _SERVER,
    "chunks": _MAP,
    "map": _MAP,
    "replace": _REPLACE,
    "signature": ".s(), .si() or signature(name)",
    "signature_from_request": _REPLACE,
    "starmap": _MAP,
    "subtask": ".s()",
    "update_state": "print it, and read the log of the run",
}
SIGNATURE: Mapping[str, str] = {
    "apply": "call the signature itself",
    "chunks": _MAP,
    "clone": "a new signature",
    "freeze": "apply_async(task_id=...)",
    "link": _LINK,
    "link_error": _LINK,
    "map": _MAP,
    "on_error": _LINK,
    "replace": "a new signature",
    "set": "options of apply_async",
    "starmap": _MAP,
}
RESULT: Mapping[str, str] = {
    "children": "the task records of the run",
    "collect": "get(): a chain, group or chord is one run",
    "forget": "remove it: results are removed with their run",
    "join": "get(): a group is one run, and its value is the list",
    "join_native": "get(): a group is one run, and its value is the list",
    "parent": "get(): a chain is one run",
    "then": _LINK,
}
APP: Mapping[str, str] = {
    "add_periodic_task": "conf.beat_schedule",
    "amqp": _SERVER,
    "autodiscover_tasks": "import the modules of the tasks in the module of the app",
    "backend": _SERVER,
    "broker": _SERVER,
    "config_from_envvar": "app.conf.beat_schedule and app.conf.timezone",
    "config_from_object": "app.conf.beat_schedule and app.conf.timezone",
    "connection": _SERVER,
    "control": "pyoco-client, or the routes of the server",
    "events": _SIGNALS,
    "include": "import the modules of the tasks in the module of the app",
    "on_after_configure": "conf.beat_schedule",
    "start": "pyoco-worker MODULE:APP",
    "worker_main": "pyoco-worker MODULE:APP",
}
CONF: Mapping[str, str] = {
    "accept_content": _REMOVE,
    "broker_url": _SERVER,
    "enable_utc": "remove it: instants are kept in UTC",
    "include": APP["include"],
    "imports": APP["include"],
    "result_backend": _SERVER,
    "result_expires": "PYOCO_RUN_TTL_SEC of the server",
    "result_serializer": TASK_OPTIONS["serializer"],
    "task_acks_late": _ACKS,
    "task_always_eager": "call the task itself",
    "task_queues": _ROUTES,
    "task_routes": _ROUTES,
    "task_serializer": TASK_OPTIONS["serializer"],
    "task_soft_time_limit": "@app.task(time_limit=...)",
    "task_time_limit": "@app.task(time_limit=...)",
    "worker_concurrency": "pyoco-worker --slots",
    "worker_prefetch_multiplier": "remove it: a worker takes what it has a free slot for",
}
MODULE: Mapping[str, str] = {
    "Task": TASK_OPTIONS["base"],
    "chunks": _MAP,
    "current_app": "the Celery object of your module",
    "current_task": "@app.task(bind=True), and self",
    "group_result": RESULT["join"],
    "shared_task": "@app.task of the Celery object",
    "signals": _SIGNALS,
    "subtask": "signature",
    "xmap": _MAP,
    "xstarmap": _MAP,
}

_ERR_ID = CATALOGUE[NotOffered.number].err_id
_OTHERWISE = "there is nothing like it: see the guide on moving from Celery"


def refusal(name: str, hints: Mapping[str, str], where: str = "") -> NotOffered:
    """Return the error for a name that is not offered."""
    full = f"{where}.{name}" if where else name
    return NotOffered(f"{_ERR_ID}: {full} of Celery is not offered; instead: {hints.get(name, _OTHERWISE)}")


def refuse_all(names: Iterable[str], hints: Mapping[str, str], where: str = "") -> None:
    """Raise for the first of these names. None of them may be ignored."""
    for name in names:
        raise refusal(name, hints, where)
