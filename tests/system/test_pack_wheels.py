"""Packs that came as wheels, in real processes: offered by a gateway, executed by a worker, and kept in their box."""

from __future__ import annotations

import shutil
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from support.priced.pack_plug_ins import Shelf
from support.priced.processes import Gateway, Site, Worker, settings_of, until
from support.priced.stacks import SQLITE
from support.servers import NatsServer
from support.warm_processes import ran

EXAMPLE = Path(__file__).parents[2] / "examples" / "word_count_pack"
FEE = "0.0050"


def unpacked_example(folder: Path) -> None:
    """Built as its author would, but for the network."""
    project = folder / "project"
    shutil.copytree(EXAMPLE, project, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", str(folder), str(project)]
    done = ran(command, timeout=250)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("word_count_pack-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "packages")


@dataclass
class Deployed:
    site: Site
    gateway: Gateway
    worker: Worker


@pytest.fixture(scope="module")
def deployed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    folder = tmp_path_factory.mktemp("packs")
    unpacked_example(folder)
    shelf = Shelf(folder / "packages")
    shelf.add("words")
    shelf.add("broken", "import os; os._exit(1)")
    nats = NatsServer(folder / "nats")
    nats.start()
    path = {"PYTHONPATH": str(shelf.folder), "PYOCO_DECISION_API_KEY": "sk-key-of-the-model"}
    site = Site(folder, nats, {**settings_of(SQLITE, folder, request), **path})
    try:
        gateway, worker = site.gateway("gateway"), site.worker("worker")
        gateway.until_ready()
        worker.until_ready()
        yield Deployed(site, gateway, worker)
    finally:
        site.end()
        nats.kill()


def ended(deployed: Deployed, pack_type: str, timebox_sec: int = 60, **inputs: Any) -> dict[str, Any]:
    """A run of this pack, as it is shown at its end; the money is right then."""
    payer = deployed.site.payer()
    run_id = deployed.gateway.submitted(
        payer,
        pack_type=pack_type,
        inputs=inputs,
        reservation={"max_cost_usd": "0.2500", "timebox_sec": timebox_sec},
        artifacts={"include_markdown": True},
    )
    return deployed.gateway.until_status(payer, run_id, "COMPLETED", "FAILED")


def envelope_of(deployed: Deployed, shown: dict[str, Any]) -> dict[str, Any]:
    address = urlsplit(shown["result"]["presigned_url"])
    found: dict[str, Any] = deployed.gateway.client.get(f"{address.path}?{address.query}").raise_for_status().json()
    return found


def check_counted(deployed: Deployed) -> None:
    shown = ended(deployed, "word_count", text="to be or not to be")
    assert (shown["status"], shown["cost"]["used_usd"]) == ("COMPLETED", "0.0010")
    envelope = envelope_of(deployed, shown)
    assert envelope["pack_type"] == "word_count"
    assert envelope["data"]["words"] == 6
    assert envelope["data"]["top"][0] == {"word": "be", "count": 2}
    assert envelope["meta"]["word_count"] == {"version": "1.0.0"}
    assert envelope["meta"]["reliability_met"] is None
    assert [*envelope["artifacts"]] == ["words.md"]


def test_the_example_is_executed_and_paid_for(deployed: Deployed) -> None:
    """PRICED-114, PRICED-129"""
    check_counted(deployed)
    payer = deployed.site.payer()
    refused = deployed.gateway.post(payer, pack_type="word_count", inputs={"text": "", "top": 51, "more": 1})
    assert refused.status_code == 422
    assert {each["pointer"] for each in refused.json()["errors"]} == {"/inputs/text", "/inputs/top", "/inputs"}
    assert deployed.site.balance(payer) == 1_000_000
    shown = ended(deployed, "word_count", text="!!!")
    assert (shown["status"], shown["result"]["problem"]["detail"]) == (
        "FAILED",
        "NO_WORDS: the text has no words in it",
    )
    assert shown["cost"]["used_usd"] == FEE


def test_a_pack_that_hangs_leaves_or_closes_its_lines_costs_its_own_run(deployed: Deployed) -> None:
    """PRICED-118, PRICED-124, PRICED-171"""
    shown = ended(deployed, "words", timebox_sec=1, text="hang")
    assert (shown["result"]["reason_code"], shown["cost"]["used_usd"]) == ("TIMEBOX_EXCEEDED", FEE)
    shown = ended(deployed, "words", text="leave")
    assert (shown["result"]["reason_code"], shown["cost"]["used_usd"]) == ("PACK_FAILED", FEE)
    shown = ended(deployed, "words", text="eat lines")
    envelope = envelope_of(deployed, shown)
    assert (envelope["status"], envelope["data"]) == ("COMPLETED", {"said": "EAT LINES"})
    eaten = envelope["meta"]["words"]["pid"]
    pid = envelope_of(deployed, ended(deployed, "words", text="go on"))["meta"]["words"]["pid"]
    assert pid != eaten, "what closed its lines is of no use to the next run"
    assert pid in {each.pid for each in deployed.worker.pack_hosts()}
    assert "sk-key" not in str(psutil.Process(pid).environ())
    check_counted(deployed)
    assert ended(deployed, "decision", question="Shall we?")["status"] == "COMPLETED"
    for process in (deployed.gateway, deployed.worker):
        assert "what a tenant sent" not in process.output.read_text()
    deployed.site.check_money()


def test_a_broken_pack_is_told_once_and_is_not_offered(deployed: Deployed) -> None:
    """PRICED-69"""
    answer = deployed.gateway.post(deployed.site.payer(), pack_type="broken", inputs={"text": "a"})
    assert answer.status_code == 422
    assert "word_count, words" in answer.json()["errors"][0]["message"]
    for process in (deployed.gateway, deployed.worker):
        until(lambda process=process: process.has_said("cannot be offered"), 10, "the log")  # type: ignore[misc]
        lines = [line for line in process.output.read_text().splitlines() if "cannot be offered" in line]
        assert len(lines) == 1
        assert "broken 1.0" in lines[0]
