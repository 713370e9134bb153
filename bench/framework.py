"""The gateway without its guard in front: every request takes the framework's own way to the same endpoints."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from pyoco_server.actions.authenticate import NOBODY
from pyoco_server.http_api import create_app

_gateway = create_app()


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    scope["caller"] = NOBODY
    await Starlette.__call__(_gateway, scope, receive, send)
