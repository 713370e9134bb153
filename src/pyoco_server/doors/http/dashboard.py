"""`GET /`, `GET /docs` and `GET /static/{path}`: the dashboard, the API page, and their files."""

from __future__ import annotations

import re
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.doors.dashboard.assets import MEDIA_TYPES, Asset
from pyoco_server.doors.dashboard.page import Dashboard
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.html_headers import HTML_HEADERS
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.requests import has_already
from pyoco_server.errors import NotFound

__all__ = ["OPERATIONS", "SCHEMAS"]

#: Revalidated on every use, and sent again only if changed.
_FRESH = "no-cache"
#: The version is part of the URL, so the content never changes.
_FOR_EVER = "public, max-age=31536000, immutable"

_HEADERS = HTML_HEADERS | {"Vary": "Accept-Encoding"}


async def get_dashboard(request: Request) -> Response:
    """FLOW-244, FLOW-246"""
    page = _dashboard_of(request).page
    if page is None:
        raise NotFound("the dashboard's files are not installed")
    return _answer(request, page, _FRESH)


async def get_docs(request: Request) -> Response:
    """SAFE-10: our own page; the framework's page loads its code from other hosts."""
    page = _dashboard_of(request).docs
    if page is None:
        raise NotFound("the dashboard's files are not installed")
    return _answer(request, page, _FRESH)


async def get_static(request: Request) -> Response:
    """FLOW-245: look up the exact name among the files read at startup; no path reaches the file system."""
    found = _dashboard_of(request).assets.find(request.path_params["path"])
    if found is None:
        raise NotFound("the dashboard has no such file")
    asset, stays = found
    return _answer(request, asset, _FOR_EVER if stays else _FRESH)


def _dashboard_of(request: Request) -> Dashboard:
    return cast(Dashboard, request.app.state.dashboard)


def _answer(request: Request, asset: Asset, caching: str) -> Response:
    packed = asset.gzipped if _takes_gzip(request) else None
    tag = f'"{asset.digest}"' if packed is None else f'"{asset.digest}-gzip"'
    headers = _HEADERS | {"ETag": tag, "Cache-Control": caching}
    # Compare with the representation this request would get: caches copy the headers of a 304.
    if has_already(request, tag):
        return Response(status_code=304, headers=headers)
    if packed is not None:
        headers["Content-Encoding"] = "gzip"
    # Set the content type as is: for `text/*` the framework would add a charset of its own.
    return Response(asset.content if packed is None else packed, headers=headers | {"Content-Type": asset.media_type})


_REFUSED = re.compile(r";\s*q\s*=\s*0(\.0*)?\s*$", re.ASCII | re.IGNORECASE)


def _takes_gzip(request: Request) -> bool:
    """Gzip must be accepted by name: `*` or a missing header gets the plain form, which every client can read."""
    offers = (offer.strip() for offer in _all(request, "accept-encoding").split(","))
    return any(offer.partition(";")[0].strip().lower() == "gzip" and not _REFUSED.search(offer) for offer in offers)


def _all(request: Request, name: str) -> str:
    return ",".join(request.headers.getlist(name))


SCHEMAS: dict[str, Any] = {}

_NOT_MODIFIED = {304: "`If-None-Match` matches: the file has not changed."}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/",
        endpoint=get_dashboard,
        any_query=True,
        summary="Open the dashboard",
        description="One page that shows runs, workers and queues. The page itself needs no key; its data does.",
        answer={"description": "The page.", "content": {"text/html": {"schema": schemas.TEXT}}},
        more_answers=_NOT_MODIFIED,
        errors=(404,),
        open=True,
        tags=("dashboard",),
    ),
    Operation(
        method="GET",
        path="/docs",
        endpoint=get_docs,
        any_query=True,
        summary="Open the page about this API",
        description="Shows every request of `/openapi.json`, and sends them. It loads nothing from elsewhere.",
        answer={"description": "The page.", "content": {"text/html": {"schema": schemas.TEXT}}},
        more_answers=_NOT_MODIFIED,
        errors=(404,),
        tags=("dashboard",),
    ),
    Operation(
        method="GET",
        path="/static/{path}",
        endpoint=get_static,
        any_query=True,
        summary="Read a file of the dashboard",
        description="`path` is the rest of the address, slashes included.",
        parameters=(
            {
                "name": "path",
                "in": "path",
                "required": True,
                "schema": schemas.TEXT,
                "description": "A file's name, perhaps after `v-` and the version of all files.",
            },
        ),
        answer={
            "description": "The file.",
            "content": {kind.partition(";")[0]: {"schema": schemas.TEXT} for kind in MEDIA_TYPES.values()},
        },
        more_answers=_NOT_MODIFIED,
        errors=(404,),
        open=True,
        tail=True,
        tags=("dashboard",),
    ),
)
