"""Flows that look like work: `pyoco-worker --flow-resolver tools.demo.flows:resolve`."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path
from typing import Any

from pyoco import Flow, task

__all__ = ["resolve"]

log = logging.getLogger("shop.payments")


def _step(name: str, seconds: float, output: Any = None) -> Any:
    """A task that takes its time, in small pieces, so that it can be cancelled; and until the file that the parameter
    `while_exists` names, if any, is gone."""

    def work(ctx: Any) -> Any:
        scale, gate = float(ctx.params.get("scale", 1.0)), ctx.params.get("while_exists")
        until = time.monotonic() + seconds * scale
        while (time.monotonic() < until or (gate and Path(gate).exists())) and not ctx.is_cancelled:
            time.sleep(0.02)
        return output

    work.__name__ = name
    return task(work)


def charge(ctx: Any) -> None:
    sys.stdout.write("\x1b[1m40 cards\x1b[0m in this batch\n")
    log.warning("the bank answered after 3 tries")
    raise ValueError(f"card {ctx.params.get('card', '****')} was declined by the bank: insufficient funds")


def _nightly_report() -> Flow:
    flow = Flow(name="nightly_report")
    (
        flow
        >> _step("extract_orders", 0.6, {"rows": 18_204})
        >> [_step("clean_orders", 0.8, {"dropped": 31}), _step("load_prices", 0.5, {"currencies": 12})]
    )
    flow >> _step("join", 0.7, {"rows": 18_173})
    flow >> [_step("chart_revenue", 0.6), _step("chart_returns", 0.9), _step("export_csv", 0.4, {"bytes": 2_418_113})]
    flow >> _step("publish", 0.3, {"url": "reports/2026-11-14.html"})
    return flow


def _charge_cards() -> Flow:
    flow = Flow(name="charge_cards")
    flow >> _step("load_batch", 0.2, {"cards": 40}) >> task(charge) >> _step("send_receipts", 0.2)
    return flow


def _train_model() -> Flow:
    flow = Flow(name="train_model")
    (
        flow
        >> _step("fetch_features", 1.0, {"shape": [50_000, 64]})
        >> [_step("fold_1", 6), _step("fold_2", 6), _step("fold_3", 6)]
    )
    flow >> _step("pick_best", 0.5, {"auc": 0.913})
    return flow


def _resize_images() -> Flow:
    flow = Flow(name="resize_images")
    flow >> _step("list_images", 0.05, {"images": 12}) >> _step("resize", 0.15, {"resized": 12})
    return flow


_FLOWS = {
    "nightly_report": _nightly_report,
    "charge_cards": _charge_cards,
    "train_model": _train_model,
    "resize_images": _resize_images,
}


def resolve(flow_name: str) -> Flow:
    return _FLOWS[flow_name]()
