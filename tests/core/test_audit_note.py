"""What an audit leaves behind for who only wants to know whether all is well."""

from __future__ import annotations

import pytest

from pyoco_server.core.priced.audit_note import AuditNote


def test_a_note_is_read_as_it_was_written() -> None:
    note = AuditNote.of(7, ["a", None, "a", "b"])
    assert AuditNote.read(note.text()) == note == AuditNote(7, {"a": 2, None: 1, "b": 1})
    assert AuditNote.read(AuditNote.of(7, []).text()) == AuditNote(7, {})


def test_a_tenant_sees_its_own_differences_and_those_of_the_whole() -> None:
    note = AuditNote.of(7, ["a", None, "a", "b"])
    assert [note.seen_by(each) for each in ("a", "b", "c", None)] == [3, 2, 1, 4]


def test_a_note_stays_small_however_many_tenants_differ() -> None:
    note = AuditNote.of(7, (f"tenant-{number}" for number in range(5_000)))
    assert len(note.differences) == 1_000


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", "7", "{}", '{"at_us": 1, "ledger": 0}', '{"at_us": "x", "ledger": 0, "tenants": {}}']
)
def test_what_is_no_note_is_none(text: str | None) -> None:
    assert AuditNote.read(text) is None
