"""The argument MODULE:APP of commands that start workers (APP-9)."""

from __future__ import annotations

from pyoco_server.errors import UsageError

__all__ = ["check_one_source"]


def check_one_source(app: str | None, flow_resolver: str | None) -> None:
    """Raise UsageError if both an app and a resolver are given, or the app has no module."""
    if app is None:
        return
    if flow_resolver is not None:
        raise UsageError("give MODULE:APP or --flow-resolver, not both")
    module, colon, attribute = app.partition(":")
    if not (module and colon and attribute):
        raise UsageError(f"{app!r} is not an app: it is MODULE:APP; example: my_flows:app")
