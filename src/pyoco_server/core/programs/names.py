"""Names of groups, programs, clients, jobs and files, and their validation.

Groups, programs and client ids are single tokens of a subject (GRID-3).
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections import Counter
from collections.abc import Iterable

from pyoco_server.core.names import is_tag
from pyoco_server.core.programs.faults import Code, GridRefused

__all__ = [
    "FILES_MAX",
    "check_client_id",
    "check_exec_name",
    "check_file_names",
    "check_group",
    "client_id_of",
    "client_key",
    "exec_of",
    "file_name_problem",
    "flow_name_of",
    "is_client_id",
    "is_exec_name",
    "is_group",
    "read_job_id",
    "requeued_job_id",
    "run_id_of",
    "shown_clients",
    "tenant_token",
    "tenant_token_of",
]

#: Limit of input files per job.
FILES_MAX = 64
_FILE_NAME_BYTES_MAX = 255
_FLOW_PREFIX = "exec:"
DEFAULT_GROUP = "default"

_GROUP = re.compile(r"[A-Za-z0-9_-]{1,32}", re.ASCII)
_EXEC = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", re.ASCII)
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_UUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}", re.ASCII)
#: Separates client id and tenant: neither may contain it, and it is allowed in both subjects and keys.
_OF_TENANT = "="
_NIL = "00000000-0000-0000-0000-000000000000"


def is_group(text: object) -> bool:
    return isinstance(text, str) and _GROUP.fullmatch(text) is not None


def is_exec_name(text: object) -> bool:
    return isinstance(text, str) and _EXEC.fullmatch(text) is not None


def is_client_id(text: object) -> bool:
    """GRID-3. Worker ids at a door have the same form."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def check_group(text: object) -> str:
    """Return the group. Raises GridRefused."""
    if isinstance(text, str) and is_group(text):
        return text
    raise GridRefused(Code.BAD_SCHEMA, "group must be 1 to 32 letters, digits, '_' or '-'", field="group")


def check_exec_name(text: object) -> str:
    """Return the program name. Raises GridRefused."""
    if isinstance(text, str) and is_exec_name(text):
        return text
    message = "the name of a program is 1 to 64 letters, digits, '_' or '-', and does not begin with '-'"
    raise GridRefused(Code.BAD_EXEC_NAME, message, field="ExecName")


def check_client_id(text: object, field: str = "ClientId") -> str:
    """Return the client id. Raises GridRefused."""
    if isinstance(text, str) and is_client_id(text):
        return text
    raise GridRefused(Code.BAD_SCHEMA, f"{field} must be 1 to 64 letters, digits, '_' or '-'", field=field)


def read_job_id(text: object) -> str:
    """Return the JobId in lower case (GRID-1). Raises GridRefused."""
    if isinstance(text, str) and _UUID.fullmatch(text) and text != _NIL:
        return text.lower()
    raise GridRefused(
        Code.BAD_JOB_ID, "JobId must be a UUID such as 6f1c2a9e-3b7d-4c55-9a10-2f4e8d7b6c01", field="JobId"
    )


def run_id_of(job_id: str, group: str) -> str:
    """Derive the run id (GRID-2), so that a job has one record per group, however often it is submitted."""
    return job_id if group == DEFAULT_GROUP else str(uuid.uuid5(uuid.UUID(job_id), group))


def client_key(client_id: str, tenant_id: str | None) -> str:
    """Return the client within its tenant, as a token of subjects and keys (SAFE-4).

    Two tenants may use the same client id: their lanes, slots and caps are separate. Without a tenant the key is the
    client id itself, as in versions without tenants.
    """
    return client_id if tenant_id is None else f"{client_id}{_OF_TENANT}{tenant_token(tenant_id)}"


def client_id_of(key: str) -> str:
    return key.partition(_OF_TENANT)[0]


def tenant_token_of(key: str) -> str | None:
    """Return the tenant part of a client key, as written by `tenant_token`. None: the client has no tenant."""
    return key.partition(_OF_TENANT)[2] or None


def shown_clients(keys: Iterable[str]) -> dict[str, str]:
    """Return the display name of each client key in a view over several tenants.

    The client id, or the complete key if two of them share a client id.
    """
    counts = Counter(map(client_id_of, keys := list(keys)))
    return {key: key if counts[client_id_of(key)] > 1 else client_id_of(key) for key in keys}


def tenant_token(tenant_id: str) -> str:
    """Return the tenant id, or its hash if it does not have the form of a tenant id and could break a subject."""
    return tenant_id if is_tag(tenant_id) else hashlib.sha256(tenant_id.encode()).hexdigest()


def requeued_job_id(run_id: str, sequence: int) -> str:
    """Derive the JobId of a requeued dead letter (GRID-88): repeating the request creates no second job."""
    return str(uuid.uuid5(uuid.UUID(run_id), f"requeue:{sequence}"))


def flow_name_of(exec_name: str) -> str:
    """Return the flow name under which a program is listed (GRID-150)."""
    return _FLOW_PREFIX + exec_name


def exec_of(flow_name: str) -> str | None:
    """Reverse `flow_name_of`. None: not the name of a program."""
    return flow_name.removeprefix(_FLOW_PREFIX) if flow_name.startswith(_FLOW_PREFIX) else None


def file_name_problem(name: object) -> str | None:  # noqa: PLR0911 - one rule, one line
    """Return why a name is not valid for an input file (GRID-96), or None if it is."""
    if not isinstance(name, str) or not name:
        return "a file needs a name"
    if name == "." or ".." in name:
        return "a file name may not be '.' or contain '..'"
    if "/" in name or "\\" in name:
        return "a file name may not contain '/' or '\\'"
    if any(ord(character) < 32 or 127 <= ord(character) < 160 for character in name):
        return "a file name may not contain control characters"
    if name[0] == " " or name[-1] == " ":
        return "a file name may not begin or end with a space"
    if name.startswith(".owner"):
        return "a file name may not begin with '.owner'"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "a file name must be text that UTF-8 can hold"
    return f"a file name has at most {_FILE_NAME_BYTES_MAX} bytes" if size > _FILE_NAME_BYTES_MAX else None


def check_file_names(names: Iterable[object]) -> None:
    """Check every name, their number, and that they are distinct on a case-insensitive file system. O(n).

    Raises GridRefused.
    """
    seen: set[str] = set()
    for count, name in enumerate(names, 1):
        if count > FILES_MAX:
            raise GridRefused(Code.TOO_LARGE, f"a job has at most {FILES_MAX} files", field="Files")
        problem = file_name_problem(name)
        folded = str(name).casefold()
        if problem is None and folded in seen:
            problem = "two files have the same name, when letter case is ignored"
        if problem is not None:
            raise GridRefused(Code.BAD_FILE_NAME, problem, field="Files")
        seen.add(folded)
