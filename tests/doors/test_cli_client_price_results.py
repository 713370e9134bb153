"""Results of `pyoco-client price`: printed and saved."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.core.priced.envelope import Artifact
from support.client_commands import Client, terminal
from support.priced.gateways import PricedDoor
from support.priced.price_commands import RUN, SUBMIT, call, client, in_its_loop, url
from support.strangers import response, somebody

__all__ = ["call", "client", "url"]


@in_its_loop
async def test_a_result_is_printed_for_people_and_for_programs(
    priced_door: PricedDoor, call: Callable[..., Any]
) -> None:
    """PRICED-130: lists become tables, nothing escapes to the terminal, without a result the reason is printed"""
    payer = await priced_door.payer("1.0000")
    run_id = await priced_door.submitted(payer)
    early = await call(payer, "price", "result", run_id)
    assert early.code != 0
    assert "the run is QUEUED; only a COMPLETED one has an envelope" in early.err
    rows = [{"rule_id": f"r{at}", "passed": at == 1, "first_offset": None} for at in range(2)]
    data = {
        "verdict": "FAIL",
        "findings": rows,
        "deep": [{"a": {"b": [1, []]}}],
        "note": "two\nlines \x1b[31m",
        "none": {},
    }
    await priced_door.completed(run_id, data, [Artifact(name="x.md", content_type="text/markdown", data=b"#")])
    whole = await call(payer, "price", "result", run_id, "--output", "json")
    assert json.loads(whole.out)["data"] == data
    shown = await call(payer, "price", "result", run_id, "--output", "table")
    assert shown.code == 0
    lines = [line.split() for line in shown.out.splitlines()]
    for line in (
        "used_usd: 0.0500",
        "verdict: FAIL",
        "rule_id passed first_offset",
        "r0 no -",
        "r1 yes -",
        "note: two",
    ):
        assert line.split() in lines, shown.out
    assert ["lines", "\\x1b[31m"] in lines
    assert "\x1b" not in shown.out
    assert any(line[:2] == ["x.md", "1"] for line in lines)


ENVELOPE: dict[str, Any] = {
    **dict.fromkeys(("schema_version", "run_id", "pack_type", "status", "generated_at"), "x"),
    "cost": dict.fromkeys(("reserved_usd", "used_usd", "minimum_fee_usd"), "0.0000"),
    "data": {},
    "artifacts": {},
    "logs": {"discard_log": [], "blocked_log": []},
    "meta": {},
}


def test_a_person_reads_all_of_the_text_that_was_paid_for() -> None:
    """What no cell can show stands line by line; what fits stays a table, and nothing reaches the terminal"""
    long = "The sum of all that is written on this page is [□] EUR, and it is due on 15 Marsh(?)."
    blocks = [
        {"text": "Annual Report", "confidence": 0.96},
        {"text": f"Invoice\x1b[2J 117\n{long}\n", "confidence": 0.88},
    ]
    data = {
        "texts": [{"source": "scan.png", "page": 1, "blocks": blocks}],
        "notes": [{"type": "VERIFY_SPELLING", "value": "Marsh"}],
        "wide": [{"text": "請" * 25}],
        "odd": [{"\x1b[2J": 1}],
        "ends": [{"text": "short\n"}],
    }
    answer = response("200 OK", json.dumps(ENVELOPE | {"data": data}))
    with somebody(answer) as url, terminal(url, "price", "result", "x") as shown:
        assert shown.left() == 0
    lines = [line.strip() for line in shown.sent.splitlines()]
    at = lines.index("blocks:")
    assert lines[at + 1 : at + 8] == [
        "1.",
        "text: Annual Report",
        "confidence: 0.96",
        "2.",
        "text: Invoice\\x1b[2J 117",
        long,
        "confidence: 0.88",
    ]
    assert [line.split() for line in lines[lines.index("notes:") + 1 :][:2]] == [
        ["type", "value"],
        ["VERIFY_SPELLING", "Marsh"],
    ]
    assert f"text: {'請' * 25}" in lines
    assert "\\x1b[2J: 1" in lines
    assert "text: short" in lines
    assert "\x1b" not in shown.sent
    assert "\\x0a" not in shown.sent


@pytest.mark.parametrize(("depth", "output"), [(500, "json"), (500, "table"), (990, "table"), (100_000, "json")])
def test_a_result_of_any_depth_is_printed_or_told_of(client: Client, depth: int, output: str) -> None:
    deep = '{"a": ' * depth + "1" + "}" * depth
    with somebody(response("200 OK", json.dumps(ENVELOPE | {"data": "@"}).replace('"@"', deep))) as url:
        ended = client("--server", url, "price", "result", "x", "--output", output)
    assert ended.code == 0 or "it is nested too deeply" in ended.err
    if depth == 500:
        assert ended.code == 0
        assert ended.out.count("a") >= (depth if output == "json" else 8)


@in_its_loop
async def test_files_to_make_besides_are_asked_for_by_name(priced_door: PricedDoor, call: Callable[..., Any]) -> None:
    payer = await priced_door.payer("1.0000")
    for words, wanted in (
        ([], {}),
        (["--artifact", "docx"], {"include_docx": True}),
        (["--artifact", "markdown", "--artifact", "docx"], {"include_markdown": True, "include_docx": True}),
    ):
        run_id = (await call(payer, *SUBMIT, "0.2500", *words)).result["run_id"]
        assert (await priced_door.row(run_id)).artifacts == wanted
    ended = await call(payer, *SUBMIT, "0.2500", "--artifact", "pdf")
    assert ended.code != 0
    assert "'markdown', 'docx'" in ended.err


@in_its_loop
async def test_a_result_is_saved_with_its_files(
    priced_door: PricedDoor, call: Callable[..., Any], tmp_path: Path
) -> None:
    """PRICED-130, PRICED-169: byte by byte, in a folder that is made, and over nothing that is there"""
    payer = await priced_door.payer("1.0000")
    run_id = await priced_door.submitted(payer)
    folder = tmp_path / "scans" / "may"
    words = ("price", "result", run_id, "--save", str(folder))
    early = await call(payer, *words)
    assert (early.code, early.out, early.err) == (1, "", f"run {run_id} is QUEUED: there is no result\n")
    files = {"ocr.md": b"# one", "ocr.docx": bytes(range(256)) * 2_000}
    made = [Artifact(name=name, content_type="text/plain", data=data) for name, data in files.items()]
    await priced_door.completed(run_id, {"answer_text": "yes"}, made)
    saved = (await call(payer, *words)).result
    assert {each["name"]: each["bytes"] for each in saved if each["name"] in files} == {
        name: len(data) for name, data in files.items()
    }
    assert [Path(each["path"]).parent for each in saved] == [folder] * 3
    stored = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert json.loads(stored.pop("pack_envelope.json"))["data"] == {"answer_text": "yes"}
    assert stored == files

    (folder / "ocr.md").write_text("mine")
    (folder / "pack_envelope.json").unlink()
    again = await call(payer, *words)
    assert again.code == 1
    assert f"{folder / 'ocr.md'} exists already; --force overwrites it" in again.err
    assert (folder / "ocr.md").read_text() == "mine"
    table = await call(payer, *words, "--force", "--output", "table")
    assert (table.code, table.out.split()[:2]) == (0, ["name", "bytes"])
    assert "ocr.md" in table.out
    assert f"stored in {folder}" in table.err
    assert (folder / "ocr.md").read_bytes() == files["ocr.md"]
    no_folder = await call(payer, "price", "result", run_id, "--save", str(folder / "ocr.md"))
    assert (no_folder.code, "is not a folder" in no_folder.err) == (1, True)
    below = await call(payer, "price", "result", run_id, "--save", str(folder / "ocr.md" / "x"))
    assert (below.code, "cannot write" in below.err) == (1, True)


ELSEWHERE = dict.fromkeys(("presigned_url", "sha256", "content_type", "expires_at"), "x") | {"name": "../x", "bytes": 1}


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ({"artifacts": []}, "its structure is unexpected"),
        ({"presigned_url": "http://127.0.0.1:1/hush", "sha256": "0", "artifacts": []}, "could not be saved: "),
        ({"presigned_url": "http://[", "sha256": "0", "artifacts": []}, "could not be saved: "),
        ({"presigned_url": "/v1/results/x", "sha256": "0", "artifacts": [ELSEWHERE]}, "'../x' is no name of a file"),
    ],
)
def test_a_result_that_cannot_be_saved_is_told_of(
    client: Client, tmp_path: Path, result: dict[str, Any], told: str
) -> None:
    """PRICED-171: and its address is not"""
    run = RUN | {"status": "COMPLETED", "result": {"expires_at": "…", **result}}
    with somebody(response("200 OK", json.dumps(run))) as url:
        ended = client("--server", url, "price", "result", "x", "--save", str(tmp_path))
    assert (ended.code, ended.out) == (1, "")
    assert told in ended.err
    assert "hush" not in ended.err
    assert list(tmp_path.iterdir()) == []
