"""Explains a refused priced call: the reason, what it means for the money, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

__all__ = ["lines_of"]

_ERRORS_MAX = 20


def lines_of(response: httpx.Response) -> list[str] | None:
    """Return the lines to print. None: it is not a problem document. Members of unexpected types are shown as text."""
    try:
        body: Any = response.json()
    except ValueError:
        return None
    if not isinstance(body, dict) or not isinstance(body.get("reason_code"), str):
        return None
    reason = body["reason_code"]
    lines = [f"HTTP {response.status_code} {reason}: {body.get('detail') or body.get('title') or ''}"]
    errors = body.get("errors")
    lines += [_place(each) for each in (errors if isinstance(errors, list) else ())[:_ERRORS_MAX]]
    if reason in _ADVICE:
        lines.append(f"  {_advice(reason, body, response)}")
    if response.status_code >= 500 and body.get("trace_id"):
        lines.append(f"  for support: trace id {body['trace_id']}")
    return lines


def _place(error: Any) -> str:
    """Format one error with its JSON pointer, or `the request` if it concerns the complete request."""
    if not isinstance(error, dict):
        return f"  {error}"
    return f"  {error.get('pointer') or 'the request'}: {error.get('message')}"


#: What the user can do; the detail already describes what happened.
_ADVICE = {
    "BUDGET_DRAINED": "there are {remaining} USD left, see `pyoco-client budget`; or reserve less: --max-cost-usd",
    "RESERVATION_BELOW_PRICE": "reserve at least the price: --max-cost-usd {price}",
    "IDEMPOTENCY_CONFLICT": "this key was used for another submission; omit --idempotency-key, and a new"
    " one is generated",
    "IDEMPOTENCY_IN_PROGRESS": "submit it again in a moment, with --idempotency-key {key}",
    "RATE_LIMITED": "try again in {after} s",
    "QUEUE_ENQUEUE_FAILED": "submit it again with --idempotency-key {key}: it is accepted and paid for once",
}
_ADVICE["DEPENDENCY_UNAVAILABLE"] = _ADVICE["QUEUE_ENQUEUE_FAILED"]


def _advice(reason: str, body: dict[str, Any], response: httpx.Response) -> str:
    headers, key = response.headers, response.request.headers.get("Idempotency-Key")
    if reason == "DEPENDENCY_UNAVAILABLE" and key is None:
        return f"try again in {headers.get('Retry-After', 'a few')} s"
    return _ADVICE[reason].format(
        remaining=headers.get("X-DPP-Budget-Remaining", "not enough"),
        price=body.get("price_usd"),
        key=key,
        after=headers.get("Retry-After", "30"),
    )
