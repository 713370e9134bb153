"""How a handle looks in a notebook."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from pyoco_server.errors import PyocoError

if TYPE_CHECKING:
    from pyoco_server.app.handles import RunHandle

__all__ = ["card"]

_COLOURS = {"COMPLETED": "#1a7f37", "FAILED": "#cf222e", "CANCELLED": "#6e7781", "RUNNING": "#0969da"}


def card(handle: RunHandle[Any]) -> str:
    """Return the state of the run now as HTML. Never raises for a server that is not there."""
    try:
        snapshot = handle.snapshot()
    except PyocoError as error:
        return _card(handle.id, "unknown", [("error", str(error))])
    rows = [("flow", str(snapshot.get("flow_name", "")))]
    tasks = snapshot.get("tasks") or {}
    if tasks:
        done = sum(state == "SUCCEEDED" for state in tasks.values())
        rows.append(("tasks", f"{done} of {len(tasks)} done"))
    if text := snapshot.get("error"):
        rows.append(("error", str(text)))
    return _card(handle.id, str(snapshot["status"]), rows)


def _card(run_id: str, status: str, rows: list[tuple[str, str]]) -> str:
    colour = _COLOURS.get(status, "#9a6700")
    lines = "".join(
        f"<tr><td style='padding-right:1em'>{html.escape(name)}</td><td>{html.escape(text[:500])}</td></tr>"
        for name, text in rows
    )
    return (
        "<div style='border:1px solid #d0d7de;border-radius:6px;padding:.6em 1em;display:inline-block'>"
        f"<b style='color:{colour}'>{html.escape(status)}</b> <code>{html.escape(run_id)}</code>"
        f"<table style='margin-top:.3em'>{lines}</table></div>"
    )
