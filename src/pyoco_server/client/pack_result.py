"""The bytes of a priced run's result: where they lie, how many there may be, and whether they are the right ones."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx

from pyoco_server.client.faults import AnswerDamaged, PackProblem, raise_for_status
from pyoco_server.client.priced_results import PackRun
from pyoco_server.core.priced.constants import ENVELOPE_MAX_BYTES

__all__ = ["Gathering", "Signed", "check_signed", "signed_in"]

_OF_A_GATEWAY = "/v1/results/"


@dataclass(frozen=True)
class Signed:
    """A signed address and what it promises. Whoever has it may read: it is in no log and in no error."""

    url: str = field(repr=False)
    sha256: str
    bytes_max: int

    def path_at(self, gateway: httpx.URL) -> str | None:
        """Its path when it leads back to this gateway; None: to another server.

        Scheme and port are not compared: behind a proxy a gateway does not know its own.
        """
        parts = urlsplit(self.url)
        is_own = parts.path.startswith(_OF_A_GATEWAY) and parts.hostname in {None, gateway.host}
        return parts.path if is_own else None


def signed_in(run: PackRun, artifact: str | None) -> Signed:
    """The result's own address, or that of an artifact. Raises ValueError when the run has none."""
    result = run["result"]
    if run["status"] != "COMPLETED" or result is None:
        raise ValueError(f"run {run['run_id']} is {run['status']}: there is no result")
    if artifact is None:
        return Signed(result["presigned_url"], result["sha256"], ENVELOPE_MAX_BYTES)
    found = {each["name"]: each for each in result.get("artifacts", [])}
    if artifact not in found:
        raise ValueError(f"run {run['run_id']} has no artifact {artifact!r}; it has: {', '.join(found) or 'none'}")
    one = found[artifact]
    return Signed(one["presigned_url"], one["sha256"], one["bytes"])


class Gathering:
    """Bytes as they come in: no more than there may be, and compared at the end."""

    def __init__(self, signed: Signed) -> None:
        self._signed = signed
        self._data = bytearray()

    def add(self, chunk: bytes) -> None:
        """Raises AnswerDamaged."""
        if len(self._data) + len(chunk) > self._signed.bytes_max:
            raise AnswerDamaged(f"more than {self._signed.bytes_max} bytes came in, and the result has no more")
        self._data += chunk

    def whole(self) -> bytes:
        """Raises AnswerDamaged."""
        found = hashlib.sha256(self._data).hexdigest()
        if found != self._signed.sha256:
            raise AnswerDamaged(f"the sha256 of what came in is {found}, and {self._signed.sha256} was announced")
        return bytes(self._data)


def check_signed(response: httpx.Response) -> None:
    """Its body has been read. Raises HTTPStatusError, whose text does not tell the address, PackProblem."""
    try:
        raise_for_status(response)
    except PackProblem:
        raise
    except httpx.HTTPStatusError:
        told = f"the result was answered with HTTP {response.status_code}; its address may have expired"
        raise httpx.HTTPStatusError(told, request=response.request, response=response) from None
