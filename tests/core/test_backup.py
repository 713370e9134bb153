"""What a backup says of itself, and its lines: they come back as they were, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.backup import (
    Manifest,
    StoredFile,
    StreamCopy,
    decode_manifest,
    encode_manifest,
    mark_of,
    marked,
    with_replicas,
)
from pyoco_server.core.backup_change import Change, encode_change, read_changes
from pyoco_server.errors import BackupFailed

COPY = StreamCopy(
    name="KV_runs",
    config={"name": "KV_runs", "max_msgs_per_subject": 1, "metadata": {"_nats.ver": "2.15.1", "mine": "yes"}},
    state={"messages": 3, "last_seq": 9, "bytes": 100},
    consumers=({"durable_name": "d"},),
    changes=2,
    files=(StoredFile("stream.tar.s2", 12, "a" * 64), StoredFile("changes.jsonl", 30, "b" * 64)),
)
MANIFEST = Manifest(backup_id="b1", made_at=1.5, made_by="0.6", nats_version="2.15.1", streams=(COPY,))

CHANGES = st.builds(
    Change,
    sequence=st.integers(0, 2**63),
    subject=st.text(min_size=1),
    data=st.binary(),
    headers=st.dictionaries(st.text(), st.text()),
)


def test_a_manifest_comes_back_as_it_was() -> None:
    assert decode_manifest(encode_manifest(MANIFEST)) == MANIFEST


def test_figures_are_sums() -> None:
    assert (COPY.messages, COPY.last_sequence, COPY.size_bytes, MANIFEST.size_bytes) == (5, 9, 42, 42)


@given(st.binary())
def test_nothing_but_a_manifest_is_taken_for_one(data: bytes) -> None:
    with pytest.raises(BackupFailed):
        decode_manifest(data)


@given(st.data())
def test_a_manifest_with_a_piece_cut_out_is_refused_or_says_the_same(data: st.DataObject) -> None:
    """No other error, whatever is missing."""
    whole = encode_manifest(MANIFEST)
    start = data.draw(st.integers(0, len(whole) - 1))
    spoilt = whole[:start] + whole[start + data.draw(st.integers(1, 40)) :]
    try:
        read = decode_manifest(spoilt)
    except BackupFailed:
        return
    assert [stream.name for stream in read.streams] == ["KV_runs"]


def test_streams_are_chosen_by_name() -> None:
    assert MANIFEST.only([]) == MANIFEST.only(["KV_runs"]) == (COPY,)
    with pytest.raises(BackupFailed, match="has no OTHER; it has KV_runs"):
        MANIFEST.only(["OTHER"])


def test_a_mark_says_where_a_stream_came_from_and_leaves_what_is_not_the_servers() -> None:
    unfinished = marked(COPY.config, "b1", is_whole=False)
    whole = marked(unfinished, "b1", is_whole=True)
    assert (mark_of(COPY.config), mark_of(unfinished), mark_of(whole)) == ((None, True), ("b1", False), ("b1", True))
    assert whole["metadata"] == {"mine": "yes", "pyoco.restored": "b1"}
    assert mark_of({}) == (None, True)


def test_the_number_of_copies_stays_unless_told() -> None:
    config = {"name": "x", "num_replicas": 3}
    assert with_replicas(config, None) == config
    assert with_replicas(config, 1) == {"name": "x", "num_replicas": 1}


async def _pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def _read(data: bytes, size: int) -> list[Change]:
    async def read() -> list[Change]:
        return [change async for change in read_changes(_pieces(data, size))]

    return asyncio.run(read())


@given(st.lists(CHANGES, max_size=4), st.integers(1, 60))
def test_changes_come_back_however_their_file_is_cut(changes: list[Change], size: int) -> None:
    assert _read(b"".join(map(encode_change, changes)), size) == changes


@pytest.mark.parametrize("line", [b"x\n", b"[]\n", b"{}\n", b'{"seq":1,"subject":"s","headers":{},"data":"*"}\n', b"{"])
def test_a_change_that_cannot_be_read_is_told(line: bytes) -> None:
    with pytest.raises(BackupFailed, match="in the backup"):
        _read(line, 100)
