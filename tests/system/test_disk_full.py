"""`pyoco-server up` mends its NATS after a full disk: real processes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.full_disks import jam
from support.stacks import until
from system.test_up import Up


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    up = Up(tmp_path, "--with-examples", "--no-keeper", PYOCO_PRICED_ENABLED="0")
    yield up.until_up()
    up.kill()


def test_after_a_full_disk_nats_is_restarted_and_submissions_are_accepted_again(up: Up) -> None:
    """The disk has room again, and NATS stores nothing until it is restarted: submissions are refused, each within two
    seconds, and `up` looks every three."""
    before = up.run("hello")
    up.until_status(before, "COMPLETED")
    nats = up.child("nats-server")
    assert nats is not None
    url = re.search(r"NATS +(\S+)", up.said)
    assert url is not None
    store = up.data_dir / "nats" / "store"
    asyncio.run(jam(url[1], store, "KV_pyoco_runs", "$KV.pyoco_runs.fill"))
    answers: list[httpx.Response] = []

    def is_accepted() -> bool:
        answers.append(httpx.post(f"{up.address}/runs", json={"flow_name": "hello"}, timeout=60))
        return answers[-1].status_code == 200

    until(is_accepted, what="a submission")
    assert {answer.status_code for answer in answers[:-1]} == {503}
    after = answers[-1].json()["run_id"]
    up.until_status(after, "COMPLETED")
    assert "the disk has free space again: restarting NATS" in up.said
    assert not nats.is_running()
    until(lambda: httpx.get(f"{up.address}/ready", timeout=60).status_code == 200, what="ready")
    shown = {run["run_id"] for run in httpx.get(f"{up.address}/runs", timeout=60).json()}
    assert {before, after} <= shown
    assert len(shown) <= 1 + len(answers)
    assert [line["message"] for line in up.logged].count("nats exited; restarting") == 1
