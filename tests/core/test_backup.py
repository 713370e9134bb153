"""What a backup says of itself, and its lines: they come back as they were, or not at all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.backup import (
    Manifest,
    StoredFile,
    StreamCopy,
    decode_manifest,
    encode_manifest,
    with_replicas,
)
from pyoco_server.core.backup_change import LateChange, encode_change, read_changes
from pyoco_server.core.backup_mark import BackupMark, mark_of, marked, unmarked
from pyoco_server.errors import BackupFailed

COPY = StreamCopy(
    name="KV_runs",
    config={"name": "KV_runs", "max_msgs_per_subject": 1, "metadata": {"_nats.ver": "2.15.1", "mine": "yes"}},
    state={"messages": 3, "last_seq": 9, "bytes": 100},
    consumers=({"durable_name": "d"},),
    changes=2,
    files=(StoredFile("stream.tar.s2", 12, "a" * 64), StoredFile("changes.jsonl", 30, "b" * 64)),
)
MANIFEST = Manifest(
    backup_id="b1", made_at=1.5, made_by="0.6", nats_version="2.15.1", streams=(COPY,), missing=("PYOCO_WORK",)
)

CHANGES = st.builds(
    LateChange,
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


def _first(document: dict[str, Any]) -> dict[str, Any]:
    stream = document["streams"][0]
    assert isinstance(stream, dict)
    return stream


#: Whatever a restore or a terminal would stumble over later, when something has been removed already.
SPOILT: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a year that no calendar has": (lambda all_: all_.update(made_at=1e18), "'1e+18' is not a time"),
    "a number that no float holds": (lambda all_: all_.update(made_at=10**400), "is not a time"),
    "a time before there were computers": (lambda all_: all_.update(made_at=-1), "'-1' is not a time"),
    "no number": (lambda all_: all_.update(made_at=float("nan")), "'nan' is not a time"),
    "a consumer without a name": (lambda all_: _first(all_)["consumers"][0].pop("durable_name"), "'durable_name' is"),
    "a consumer's name of two parts": (
        lambda all_: _first(all_)["consumers"][0].update(durable_name="a.b"),
        "'a.b' is not a name",
    ),
    "a stream without its messages": (lambda all_: _first(all_)["files"].pop(0), "KV_runs has no stream.tar.s2"),
    "a stream without its changes": (lambda all_: _first(all_)["files"].pop(1), "has 2 changes, and no changes.jsonl"),
    "changes that are not counted": (lambda all_: _first(all_).update(changes=0), "has 0 changes, and a changes.jsonl"),
    "a file twice": (lambda all_: _first(all_)["files"].append(_first(all_)["files"][0]), "KV_runs has a file twice"),
    "metadata of another kind": (lambda all_: _first(all_)["config"].update(metadata=[1]), "is not an object"),
    "an id of two words": (lambda all_: all_.update(backup_id="b1 7"), "'b1 7' is not a name"),
    "what is missing is no name": (lambda all_: all_.update(missing=["../x"]), "'../x' is not a name"),
}


@pytest.mark.parametrize(("spoil", "says"), SPOILT.values(), ids=SPOILT)
def test_what_a_restore_could_not_use_is_refused_at_once(spoil: Callable[[dict[str, Any]], object], says: str) -> None:
    document = json.loads(encode_manifest(MANIFEST))
    spoil(document)
    with pytest.raises(BackupFailed, match=r"backup\.json is damaged: ") as caught:
        decode_manifest(json.dumps(document).encode())
    assert says in str(caught.value)


@pytest.mark.parametrize("evil", ["\x1b[2J", "\x9b2J", "\u202e", "\ud800", "two\nlines"])
@pytest.mark.parametrize(
    "put",
    [
        lambda all_, evil: all_.update(made_by=evil),
        lambda all_, evil: all_.update(nats_version=evil),
        lambda all_, evil: all_.update(backup_id=evil),
        lambda all_, evil: all_.update(format=evil),
        lambda all_, evil: all_.update(format=2, made_by=evil),
        lambda all_, evil: all_.update(missing=[evil]),
        lambda all_, evil: (_first(all_).update(name=evil), _first(all_)["config"].update(name=evil)),
        lambda all_, evil: _first(all_)["config"].update(name=evil),
        lambda all_, evil: _first(all_)["files"][0].update(name=evil),
        lambda all_, evil: _first(all_)["consumers"][0].update(durable_name=evil),
    ],
)
def test_no_text_of_a_manifest_does_anything_to_a_terminal(
    put: Callable[[dict[str, Any], str], object], evil: str
) -> None:
    """It is refused, and what is said about it is plain."""
    document = json.loads(encode_manifest(MANIFEST))
    put(document, evil)
    with pytest.raises(BackupFailed) as caught:
        decode_manifest(json.dumps(document).encode())
    assert str(caught.value).isprintable()


def test_a_mark_says_where_a_stream_came_from_and_leaves_what_is_not_the_servers() -> None:
    unfinished = marked(COPY.config, BackupMark("b1"))
    whole = marked(unfinished, BackupMark("b1", (9, 3)))
    assert (mark_of(COPY.config), mark_of(unfinished), mark_of(whole)) == (
        None,
        BackupMark("b1"),
        BackupMark("b1", (9, 3)),
    )
    assert whole["metadata"].keys() == {"mine", "pyoco.restored"}
    assert unmarked(whole) == {**COPY.config, "metadata": {"mine": "yes"}}
    assert mark_of({}) is None


@pytest.mark.parametrize("text", ["", "b1", "b1 9", "b1 9 x", "b1 -9 3", "unfinished", "a b c d"])
def test_a_mark_that_cannot_be_read_is_none(text: str) -> None:
    assert mark_of({"metadata": {"pyoco.restored": text}}) is None


def test_the_number_of_copies_stays_unless_told() -> None:
    config = {"name": "x", "num_replicas": 3}
    assert with_replicas(config, None) == config
    assert with_replicas(config, 1) == {"name": "x", "num_replicas": 1}


async def _pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def _read(data: bytes, size: int) -> list[LateChange]:
    async def read() -> list[LateChange]:
        return [change async for change in read_changes(_pieces(data, size))]

    return asyncio.run(read())


@given(st.lists(CHANGES, max_size=4), st.integers(1, 60))
def test_changes_come_back_however_their_file_is_cut(changes: list[LateChange], size: int) -> None:
    assert _read(b"".join(map(encode_change, changes)), size) == changes


@pytest.mark.parametrize("line", [b"x\n", b"[]\n", b"{}\n", b'{"seq":1,"subject":"s","headers":{},"data":"*"}\n', b"{"])
def test_a_change_that_cannot_be_read_is_told(line: bytes) -> None:
    with pytest.raises(BackupFailed, match="in the backup"):
        _read(line, 100)
