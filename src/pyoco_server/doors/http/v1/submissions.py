"""Priced submissions over HTTP: validated completely before any money moves (contract 10.3, 11.1)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.requests import Request

from pyoco_server.core.packs.spec import Here
from pyoco_server.core.priced.constants import REQUEST_BODY_MAX_BYTES
from pyoco_server.core.priced.strict_text import read_object
from pyoco_server.core.priced.submission import Ask, ask_of, problems_of
from pyoco_server.doors.http.requests import read_body
from pyoco_server.errors import Problem, Refused, TooLarge
from pyoco_server.ports.priced import Priced

__all__ = ["KEY_LENGTH_MAX", "KEY_LENGTH_MIN", "here_of", "read_ask"]

KEY_LENGTH_MIN, KEY_LENGTH_MAX = 8, 64

_KEY = re.compile(rf"[!-~]{{{KEY_LENGTH_MIN},{KEY_LENGTH_MAX}}}", re.ASCII)


async def read_ask(request: Request, priced: Priced, tenant_id: str, now: float) -> Ask:
    """Read and validate a submission.

    Raises Refused with all problems, TooLarge, TooSlow. Stops reading at the maximum body size (PRICED-71).
    """
    try:
        body = await read_body(request, REQUEST_BODY_MAX_BYTES)
    except TooLarge:
        raise TooLarge(f"the body has more than {REQUEST_BODY_MAX_BYTES} bytes") from None
    if misnamed := _form_problems(request.headers):
        raise Refused(problems=misnamed)
    keys = request.headers.getlist("idempotency-key")
    document = read_object(body)
    problems = (
        *_key_problems(keys),
        *problems_of(document, priced.packs, here_of(priced, tenant_id), now, priced.config.delay_seconds_max),
    )
    if problems:
        raise Refused(problems=problems)
    return ask_of(document, keys[0])


def here_of(priced: Priced, tenant_id: str) -> Here:
    return Here(
        tenant_id=tenant_id,
        input_bucket=priced.config.pack_input_bucket,
        allow_http=priced.config.pack.url_pack_allow_http,
    )


def _form_problems(headers: Headers) -> tuple[Problem, ...]:
    """Check the headers: the body must be declared as plain JSON, or not at all."""
    problems = []
    if any(each.strip().lower() not in {"", "identity"} for each in headers.getlist("content-encoding")):
        problems.append(Problem((), "the header Content-Encoding is not understood: send the body as it is"))
    types = [each.partition(";")[0].strip().lower() for each in headers.getlist("content-type")]
    if any(each not in {"", "application/json"} and not each.endswith("+json") for each in types):
        problems.append(Problem((), "the header Content-Type must be application/json"))
    return tuple(problems)


def _key_problems(keys: Sequence[str]) -> tuple[Problem, ...]:
    """PRICED-68"""
    rule = f"the header Idempotency-Key must have {KEY_LENGTH_MIN} to {KEY_LENGTH_MAX} visible ASCII characters"
    if not keys:
        return (Problem((), f"the header Idempotency-Key is required; {rule}"),)
    if len(keys) > 1:
        return (Problem((), "the header Idempotency-Key is given more than once"),)
    return () if _KEY.fullmatch(keys[0]) else (Problem((), rule),)
