"""The index of a gateway is deleted or damaged while runs flow: lists become whole again, and nothing is lost."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from pyoco_server.config import NatsBackendConfig
from support.chaos import Process, gateway_alone
from support.priced.processes import until
from support.servers import NatsServer

#: Generous: a busy machine, and a file that is built anew.
HEALED_SECONDS = 60.0
#: What a gateway says that has met the damage.
ANEW = "the index of runs is built anew"


class Traffic:
    """Somebody submits, and somebody lists, until the end."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.submitted: list[str] = []
        self.answers: Counter[int] = Counter()
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._submit, self._list)]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """What went wrong in a thread is told by pytest."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _submit(self) -> None:
        with httpx.Client(base_url=self.address, timeout=100) as client:
            while not self._stopping.is_set():
                batch = {"runs": [{"flow_name": f"flow-{number}"} for number in range(5)]}
                answer = client.post("/runs/batch", json=batch)
                assert answer.status_code == 200, answer.text
                self.submitted += [run["run_id"] for run in answer.json()["items"]]
                time.sleep(0.05)

    def _list(self) -> None:
        with httpx.Client(base_url=self.address, timeout=100) as client:
            while not self._stopping.is_set():
                self.answers[client.get("/runs", params={"limit": 50}).status_code] += 1
                time.sleep(0.02)

    def until_listed(self, count: int) -> None:
        """Everything so far, and so many more."""
        until(lambda: len(self.submitted) >= count, 30, "submissions")
        expected = set(self.submitted)
        until(lambda: expected <= listed(self.address), HEALED_SECONDS, "the lists")

    def until_met(self, process: Process, met: int) -> None:
        """The damage, once more than that; and lists are answered again."""
        until(lambda: process.count(ANEW) > met, HEALED_SECONDS, "the damage")
        answered = self.answers[200]
        until(lambda: self.answers[200] > answered, HEALED_SECONDS, "a list")


def listed(address: str) -> set[str]:
    """Every run that the lists show, page by page."""
    found: set[str] = set()
    with httpx.Client(base_url=address, timeout=100) as client:
        page: dict[str, str] = {}
        while True:
            answer = client.get("/runs", params={"limit": 200, "envelope": "true", **page})
            if answer.status_code != 200:
                return set()
            found |= {run["run_id"] for run in answer.json()["items"]}
            if not answer.json()["next_cursor"]:
                return found
            page = {"cursor": answer.json()["next_cursor"]}


def delete(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


def cut(folder: Path) -> None:
    assert list(folder.glob("pyoco_runs*.sqlite"))
    for file in (*folder.glob("*.sqlite"), *folder.glob("*-wal")):  # while it is young, all of it is in the latter
        file.write_bytes(file.read_bytes()[:1000])


def scribble(folder: Path) -> None:
    chance = random.Random(7)
    assert list(folder.glob("pyoco_runs*.sqlite"))
    for file in (*folder.glob("*.sqlite"), *folder.glob("*-wal")):
        with file.open("r+b") as opened:
            opened.write(chance.randbytes(file.stat().st_size))


@pytest.fixture
def gateway(own_nats_server: NatsServer, tmp_path: Path) -> Iterator[tuple[Process, str]]:
    config = NatsBackendConfig(nats_url=own_nats_server.url, data_dir=str(tmp_path / "data"))
    with gateway_alone(config, tmp_path) as (process, address):
        until(lambda: is_up(address), 60, "the gateway")
        yield process, address


def is_up(address: str) -> bool:
    try:
        return httpx.get(f"{address}/ready", timeout=30).status_code == 200
    except httpx.HTTPError:
        return False


def test_lists_are_whole_again_after_their_index_was_spoilt_under_load(
    gateway: tuple[Process, str], tmp_path: Path
) -> None:
    """FLOW-95: while the gateway runs, and at its next start; an outage of lists is a 503, and soon over"""
    process, address = gateway
    folder = tmp_path / "data" / "index"
    with Traffic(address) as traffic:
        for spoil in (cut, scribble, delete):  # a deleted file is used on, and nobody else finds it
            traffic.until_listed(len(traffic.submitted) + 25)
            met = process.count(ANEW)
            spoil(folder)
            if spoil is not delete:
                traffic.until_met(process, met)
        traffic.until_listed(len(traffic.submitted) + 25)
    assert set(traffic.answers) <= {200, 503}, traffic.answers
    for spoil in (delete, scribble):
        process.end()
        spoil(folder)
        process.start()
        until(lambda: is_up(address), 60, "the gateway")
        until(lambda: listed(address) == set(traffic.submitted), HEALED_SECONDS, "the lists")
        assert process.has_said(ANEW) or spoil is delete, process.last_words
