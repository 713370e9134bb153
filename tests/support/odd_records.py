"""Records that no part of ours writes, straight into NATS: what another version, or a stranger, may leave there."""

from __future__ import annotations

import json
import uuid
from typing import Any

import nats

from support.stacks import Stack, aside

__all__ = ["LINK", "MARKUP", "TURNED", "write_odd_records"]

#: Runs as code wherever a text becomes markup.
MARKUP = "<img src=x onerror=\"window.pwned='img'\"><script>window.pwned='script'</script>'\"&amp;</td>"
#: Runs as code wherever a text becomes an address.
LINK = "javascript:window.pwned='link'"
#: Turned around, with a bell, an escape sequence and half a pair of surrogates' neighbour.
TURNED = "\u202egnp.exe\u202c \u0007\u001b[31m \ufeff\u2028"
ODD = f"{MARKUP} {LINK} {TURNED}"


def write_odd_records(stack: Stack) -> str:
    """A run, a worker, a dead letter and an event of the wheel history. Gives the id of the run."""
    run_id = stack.submit("charge_cards", {MARKUP: LINK, "list": [MARKUP, {TURNED: ODD}]})
    stack.until_status(run_id, "FAILED")
    return aside(lambda: _write(stack.nats_url, run_id))


async def _write(url: str, model: str) -> str:
    client = await nats.connect(url)
    try:
        stream = client.jetstream()
        runs = await stream.key_value("pyoco_runs")
        stored = (await runs.get(model)).value
        assert stored is not None
        run_id = str(uuid.uuid4())
        await runs.put(run_id, json.dumps(_odd_run(json.loads(stored), run_id)).encode())
        workers = await stream.key_value("pyoco_workers")
        (known, *_) = await workers.keys()
        worker = json.loads((await workers.get(known)).value or b"{}")
        odd_worker = {
            "worker_id": "odd",
            "tags": ["default", MARKUP, LINK],
            "stop_reason": ODD,
            "versions": {MARKUP: LINK},
        }
        await workers.put("odd", json.dumps({**worker, **odd_worker, "running": [ODD], "current_run_id": ODD}).encode())
        history = await stream.key_value("pyoco_wheel_history")
        await history.put(f"1794000000000_{uuid.uuid4()}", json.dumps(_odd_event()).encode())
        letter = {"run_id": run_id, "reason": "execution_error", "error": ODD, "flow_name": ODD, "detail": ODD}
        await stream.publish("pyoco.dlq.default", json.dumps(letter).encode())
    finally:
        await client.close()
    return run_id


def _odd_run(run: dict[str, Any], run_id: str) -> dict[str, Any]:
    task = next(iter(run["task_records"].values()))
    names = [MARKUP, LINK, TURNED, "__proto__", "constructor", "a" * 2000]
    return {
        **run,
        "run_id": run_id,
        "flow_name": f"flow {ODD}",
        "tag": "default",
        "tags": ["default", MARKUP, LINK],
        "error": ODD * 20,
        "worker_id": f"worker {MARKUP}",
        "cancel_reason": ODD,
        "cancel_requested_at": run["updated_at"],
        "cancel_requested_by": MARKUP,
        "reason": MARKUP,
        "tasks": dict.fromkeys(names, "FAILED") | {"strange state": MARKUP},
        "task_records": {name: {**task, "error": ODD, "traceback": ODD, "output": {name: ODD}} for name in names},
        "graph": {name: [other for other in names if other < name] for name in names},
        "earlier_attempts": [{"attempt": 1, "worker_id": ODD, "started_at": "soon", "ended_at": None, "why": MARKUP}],
    }


def _odd_worker(worker: dict[str, Any]) -> dict[str, Any]:
    odd = {"tags": ["default", MARKUP, LINK], "stop_reason": ODD, "versions": {MARKUP: LINK}, "last_run_status": MARKUP}
    return {**worker, **odd, "worker_id": "odd", "running": [ODD], "current_run_id": ODD}


def _odd_event() -> dict[str, Any]:
    return {
        "event_id": str(uuid.uuid4()),
        "occurred_at": 1794000000.0,
        "action": "upload",
        "wheel_name": f"{MARKUP}-1.0-py3-none-any.whl",
        "tags": [MARKUP, LINK],
        "source": {"remote_addr": MARKUP, "user_agent": ODD},
        "actor": {"tenant_id": MARKUP, "api_key_id": LINK},
        "size_bytes": 1,
        "sha256_hex": MARKUP,
    }
