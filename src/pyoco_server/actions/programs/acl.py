"""Read and change ACL records (section 22)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, get_args

from pyoco_server.core.frames.reading import Fields, bad_field
from pyoco_server.core.programs.admission import CAP_MAX
from pyoco_server.core.programs.names import check_client_id
from pyoco_server.ports.acl.port import AclKind, AclRecord

__all__ = ["ITEMS_MAX", "KINDS", "read_record", "read_subject", "shown_record"]

KINDS: Final[tuple[AclKind, ...]] = get_args(AclKind)
#: Limit of API keys, of program patterns and of group patterns in one record.
ITEMS_MAX: Final = 256

_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_PATTERN = re.compile(r"[A-Za-z0-9_*?\[\]!-]{1,64}", re.ASCII)
_MEMBERS = {"client": {"api_key_ids", "execs", "max_cap", "groups"}, "worker": {"api_key_ids", "execs"}}


def read_subject(kind: str, of: str) -> tuple[AclKind, str] | None:
    """Parse the kind and the id of a record's owner. None: the kind does not exist. Raises GridRefused for an invalid
    id.
    """
    found = next((each for each in KINDS if each == kind), None)
    return None if found is None else (found, check_client_id(of, "id"))


def read_record(kind: AclKind, members: Mapping[str, Any]) -> AclRecord:
    """Parse a record that an operator wrote. An unknown member is refused: a misspelt limit would limit nothing.

    Raises GridRefused(BAD_SCHEMA).
    """
    for name in members:
        if name not in _MEMBERS[kind]:
            raise bad_field(name[:64], f"is not known in the record of a {kind}")
    fields = Fields(members)
    cap = fields.get("max_cap")
    return AclRecord(
        api_key_ids=_matching_texts(fields, "api_key_ids", _KEY_ID, "ids of API keys"),
        execs=_matching_texts(fields, "execs", _PATTERN, "patterns of program names"),
        max_cap=None if cap is None else fields.integer("max_cap", 1, CAP_MAX),
        groups=("*",)
        if fields.get("groups") is None
        else _matching_texts(fields, "groups", _PATTERN, "patterns of groups"),
    )


def _matching_texts(fields: Fields, name: str, form: re.Pattern[str], what: str) -> tuple[str, ...]:
    texts = fields.texts(name, ITEMS_MAX)
    if not all(form.fullmatch(text) for text in texts):
        raise bad_field(name, f"must be {what}")
    return texts


def shown_record(kind: AclKind, of: str, record: AclRecord) -> dict[str, Any]:
    """Return the record in the form that every door shows."""
    shown: dict[str, Any] = {"kind": kind, "id": of, "api_key_ids": list(record.api_key_ids)}
    shown["execs"] = list(record.execs)
    if kind == "client":
        shown |= {"max_cap": record.max_cap, "groups": list(record.groups)}
    return shown
