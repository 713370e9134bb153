"""All requests about priced runs and budgets, as values; the counterpart of `calls.py`. Amounts are never floats."""

from __future__ import annotations

import decimal
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from pyoco_server.client.calls import Call, Reads, Repeat, json_call, key_header, only_given, path_to
from pyoco_server.client.priced_results import (
    Budget,
    BudgetJournal,
    BudgetList,
    BudgetSpend,
    PackEnvelope,
    PackInput,
    PackList,
    PackReceipt,
    PackRun,
    PricedReady,
)
from pyoco_server.client.results import Health

__all__ = [
    "get_budget",
    "get_budget_journal",
    "get_budget_spend",
    "get_envelope",
    "get_pack_run",
    "healthz",
    "list_budgets",
    "list_packs",
    "pack_submission",
    "readyz",
    "submit_pack",
    "upload_input",
    "usd_text",
]

_STEP_USD = Decimal("0.0001")


def usd_text(amount: str | int | Decimal) -> str:
    """Return dollars in their wire format, `0.2500`. A string is sent unchanged: the server validates it.

    Raises TypeError for a float, which cannot represent amounts exactly; ValueError for more than four decimals.
    """
    if isinstance(amount, str):
        return amount
    if isinstance(amount, bool) or not isinstance(amount, int | Decimal):
        raise TypeError(f"an amount is a text with four decimals or a Decimal, not a {type(amount).__name__}: '0.2500'")
    try:
        steps = Decimal(amount).quantize(_STEP_USD)
    except decimal.InvalidOperation:
        steps = None
    if steps is None or not steps.is_finite() or steps != amount:
        raise ValueError(f"{amount} cannot be written with four decimals: '0.2500'")
    return f"{steps:f}"


def pack_submission(
    pack_type: str,
    inputs: Mapping[str, Any],
    reservation: Mapping[str, Any],
    start: Mapping[str, Any],
    **more: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the body of a submission, without missing values and empty objects."""
    asked = {name: only_given(members) for name, members in more.items() if members is not None}
    return {
        "pack_type": pack_type,
        "inputs": dict(inputs),
        "reservation": only_given(reservation),
        **{name: members for name, members in asked.items() if members},
        **only_given(start),
    }


def submit_pack(submission: Mapping[str, Any], key: str | None) -> Call[PackReceipt]:
    """Idempotent: every attempt sends the same key, so the run is paid for once."""
    return replace(json_call("POST", "/v1/runs", submission, key_header(key)), reads=Reads.RECEIPT)


def get_pack_run(run_id: str) -> Call[PackRun]:
    return Call(method="GET", path=path_to("v1", "runs", run_id))


def list_packs() -> Call[PackList]:
    return Call(method="GET", path="/v1/packs")


def get_envelope(run_id: str) -> Call[PackEnvelope]:
    return Call(method="GET", path=path_to("v1", "runs", run_id, "envelope"))


def upload_input(name: str | None, content_type: str | None) -> Call[PackInput]:
    """Return the call without its body, which is the file. Idempotent: the same bytes are stored once.

    Raises ValueError for a content type that is not a valid header value.
    """
    sent_type = content_type or "application/octet-stream"
    if not (sent_type.isascii() and sent_type.isprintable()) or sent_type != sent_type.strip():
        raise ValueError("the content type holds line breaks or characters that no HTTP header can carry")
    headers = {"Content-Type": sent_type}
    return Call(method="POST", path="/v1/inputs", query=only_given({"name": name}), headers=headers)


def list_budgets(filters: Mapping[str, Any]) -> Call[BudgetList]:
    return Call(method="GET", path="/budgets", query=only_given(filters))


def get_budget(tenant_id: str) -> Call[Budget]:
    return Call(method="GET", path=path_to("budgets", tenant_id))


def get_budget_journal(tenant_id: str, filters: Mapping[str, Any]) -> Call[BudgetJournal]:
    return Call(method="GET", path=path_to("budgets", tenant_id, "journal"), query=only_given(filters))


def get_budget_spend(tenant_id: str, filters: Mapping[str, Any]) -> Call[BudgetSpend]:
    return Call(method="GET", path=path_to("budgets", tenant_id, "spend"), query=only_given(filters))


def healthz() -> Call[Health]:
    return Call(method="GET", path="/healthz", repeat=Repeat.NEVER)


def readyz() -> Call[PricedReady]:
    return Call(method="GET", path="/readyz", repeat=Repeat.NEVER)
