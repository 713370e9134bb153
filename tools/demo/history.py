"""A made-up working day of the demo flows, for pictures."""

from __future__ import annotations

import json
import math
import random
import uuid
from typing import Any

import nats

__all__ = ["an_hour_of_metrics", "write_history"]

HOURS = 6
RUNS = 420
TASKS = {
    "nightly_report": ("extract_orders", "clean_orders", "load_prices", "join", "chart_revenue", "publish"),
    "resize_images": ("list_images", "resize"),
    "charge_cards": ("load_batch", "charge", "send_receipts"),
    "train_model": ("fetch_features", "fold_1", "fold_2", "fold_3", "pick_best"),
}
SECONDS = {"nightly_report": 38.0, "resize_images": 2.4, "charge_cards": 6.0, "train_model": 310.0}
DECLINED = "card 4111 **** 1881 was declined by the bank: insufficient funds"
BUSY = "HTTP 503 from the store: try again later"


async def write_history(url: str, now: float) -> None:
    """Runs that have ended, more of them the nearer to now, straight into their bucket: nobody can wait for hours."""
    dice = random.Random(7)  # noqa: S311  (nothing secret is drawn here)
    ends = sorted(now - HOURS * 3600 * dice.random() ** 2 for _ in range(RUNS))
    client = await nats.connect(url)
    bucket = await client.jetstream().key_value("pyoco_runs")
    for ended_at in ends:
        run = _past_run(dice, ended_at)
        await bucket.put(run["run_id"], json.dumps(run).encode())
    await client.close()


def _past_run(dice: random.Random, ended_at: float) -> dict[str, Any]:
    flow = dice.choices(list(TASKS), [5, 8, 4, 1])[0]
    chances = [82, 18, 0] if flow == "charge_cards" else [92, 5, 3]
    status = dice.choices(["COMPLETED", "FAILED", "CANCELLED"], chances)[0]
    began = ended_at - SECONDS[flow] * dice.uniform(0.6, 1.8)
    tag = "reports" if flow == "nightly_report" else "default"
    run = {
        "run_id": str(uuid.UUID(int=dice.getrandbits(128), version=4)),
        "kind": "flow",
        "flow_name": flow,
        "status": status,
        "tag": tag,
        "tags": [tag],
        "params": {"batch": dice.randrange(1000)},
        "tasks": _tasks(dice, TASKS[flow], status),
        "task_records": {},
        "task_records_truncated": False,
        "attempt": 1,
        "submitted_at": began - dice.expovariate(1 / 3),
        "start_time": began,
        "end_time": ended_at,
        "heartbeat_at": ended_at,
        "updated_at": ended_at,
        "error": None,
        "attempt_id": str(uuid.uuid4()),
        "worker_id": dice.choice(["tokyo-1", "tokyo-2"]),
        "instance_id": str(uuid.uuid4()),
    }
    if status == "FAILED":
        run |= {"reason": "execution_error", "error": DECLINED if flow == "charge_cards" else BUSY}
    if status == "CANCELLED":
        run |= {"cancel_requested_at": ended_at - 1, "cancel_reason": "not needed any more"}
    return run


def _tasks(dice: random.Random, names: tuple[str, ...], status: str) -> dict[str, str]:
    done = len(names) if status == "COMPLETED" else dice.randrange(1, len(names))
    states = ["SUCCEEDED"] * done + [status] + ["PENDING"] * len(names)
    return dict(zip(names, states, strict=False))


def an_hour_of_metrics(now: float) -> dict[str, Any]:
    """What `/metrics/recent` tells after an hour."""
    dice = random.Random(3)  # noqa: S311  (nothing secret is drawn here)
    steps = 360
    wave = [1.2 + math.sin(at / 47) * 0.6 + math.sin(at / 11) * 0.25 for at in range(steps)]
    crowd = [math.exp(-(((at - 220) / 14) ** 2)) for at in range(steps)]
    submitted = [max(0, round(dice.gauss(9 * each, 2))) for each in wave]
    failed = [int(dice.random() < 0.15 + 0.8 * more) for more in crowd]
    waits = [0.05 + 0.2 * each * dice.uniform(0.7, 1.3) + 6 * more for each, more in zip(wave, crowd, strict=True)]
    spans = [2.1 + each * dice.uniform(0.6, 1.4) for each in wave]
    return {
        "now": now,
        "step_seconds": 10,
        "from": now // 10 * 10 - steps * 10,
        "submitted": submitted,
        "completed": [max(0, each - bad) for each, bad in zip(submitted, failed, strict=True)],
        "failed": failed,
        "cancelled": [int(dice.random() < 0.03) for _ in range(steps)],
        "in_flight": [max(0, min(8, round(dice.gauss(3.4 * each, 0.7)))) for each in wave[:-1]] + [4],
        "waiting": [3 + round(38 * more) for more in crowd],
        **{f"wait_p{part}": [round(each * by, 3) for each in waits] for part, by in ((50, 1), (95, 2.1), (99, 3.4))},
        **{f"run_p{part}": [round(each * by, 3) for each in spans] for part, by in ((50, 1), (95, 4), (99, 7))},
    }
