"""Downloads of a priced run's result: signed URL, size limit and sha256."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import BinaryIO
from urllib.parse import urlsplit

import httpx

from pyoco_server.client.faults import AnswerDamaged, PackProblem, raise_for_status
from pyoco_server.client.priced_results import PackRun
from pyoco_server.core.priced.constants import ENVELOPE_MAX_BYTES
from pyoco_server.core.priced.result_key import ENVELOPE_NAME

__all__ = ["Gathering", "Signed", "check_signed", "files_of", "signed_in"]

_OF_A_GATEWAY = "/v1/results/"


@dataclass(frozen=True)
class Signed:
    """A signed URL with its sha256 and size limit. The URL grants access: it must not appear in logs or errors."""

    url: str = field(repr=False)
    sha256: str
    bytes_max: int

    def path_at(self, gateway: httpx.URL) -> str | None:
        """Return the path if the URL points to this gateway; None: to another server.

        Scheme and port are not compared: behind a proxy a gateway cannot determine its public ones.
        """
        parts = urlsplit(self.url)
        is_own = parts.path.startswith(_OF_A_GATEWAY) and parts.hostname in {None, gateway.host}
        return parts.path if is_own else None


def signed_in(run: PackRun, artifact: str | None) -> Signed:
    """Return the signed URL of the result or of an artifact. Raises ValueError if the run does not have it."""
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


def files_of(run: PackRun) -> dict[str, str | None]:
    """Map the file names of a run's result to its artifacts; None stands for the result document.

    Raises ValueError if there is no result, or if two files have the same name.
    """
    signed_in(run, None)
    found: dict[str, str | None] = {ENVELOPE_NAME: None}
    for each in (run["result"] or {}).get("artifacts", []):
        if each["name"] in found:
            raise ValueError(f"run {run['run_id']} has two files of the name {each['name']!r}")
        found[each["name"]] = each["name"]
    return found


class Gathering:
    """Writes a download to a file, enforces the size limit, and checks the sha256 at the end."""

    def __init__(self, signed: Signed, file: BinaryIO, headers: Mapping[str, str]) -> None:
        """Truncate the file."""
        self._signed, self._file = signed, file
        self._digest = hashlib.sha256()
        self.count = 0
        length = headers.get("Content-Length", "")
        #: None: the response has no length.
        self.size = int(length) if length.isdecimal() else None
        file.seek(0)
        file.truncate()

    def write(self, chunk: bytes) -> None:
        """Raises AnswerDamaged, OSError."""
        if self.count + len(chunk) > self._signed.bytes_max:
            raise AnswerDamaged(f"more than {self._signed.bytes_max} bytes came in, and the result has no more")
        self._file.write(chunk)
        self._digest.update(chunk)
        self.count += len(chunk)

    def check(self) -> None:
        """Check the sha256 of the complete download. Raises AnswerDamaged, OSError."""
        found = self._digest.hexdigest()
        if found != self._signed.sha256:
            raise AnswerDamaged(f"the sha256 of what came in is {found}, and {self._signed.sha256} was announced")
        self._file.flush()


def check_signed(response: httpx.Response) -> None:
    """Raise PackProblem or HTTPStatusError for an error response, without the URL in the text.

    The body of an error response must have been read.
    """
    try:
        raise_for_status(response)
    except PackProblem:
        raise
    except httpx.HTTPStatusError:
        message = f"the result was answered with HTTP {response.status_code}; its address may have expired"
        raise httpx.HTTPStatusError(message, request=response.request, response=response) from None
