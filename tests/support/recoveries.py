"""`pyoco-server up` with all three kinds of run, whose stores the test damages."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from support.priced.processes import IMPATIENT, Gateway, Payer, admin, clean_environment, is_pack_host, until

__all__ = ["Everything", "everything"]

_ENDED = ("COMPLETED", "FAILED", "CANCELLED")


class Everything(Gateway):
    """NATS, gateway, keeper and worker on one data folder, and what an operator and users do with them."""

    def __init__(self, folder: Path, settings: Mapping[str, str], *options: str) -> None:
        patience = {**IMPATIENT, "PYOCO_PACK_SLOTS": "1", "PYOCO_PRICED_RATE_LIMIT_PER_MIN": "100000"}
        # NATS sets the queue's limit aside, and a small machine has not that much.
        room = {"EXEC_QUEUE_MAX_BYTES": str(64 * 2**20)}
        #: A busy machine is no reason for a worker to wait for half a minute.
        busy = {"WORKER_CPU_CAP": "0.95", "WORKER_CPU_WAIT_SEC": "0.5"}
        self.environment = clean_environment({**patience, **room, **busy, **settings})
        super().__init__("up", self.environment, folder, "--with-examples", "--slots", "2", *options)
        #: Sent with every request.
        self.headers: dict[str, str] = {}

    @property
    def nats_url(self) -> str:
        """Its current address: a NATS whose folder was deleted has another port."""
        words = re.compile(rb"NATS +(nats://\S+)")
        found = until(lambda: words.search(self.output.read_bytes()[self._life_at :]), 40, "the banner")
        return found[1].decode()

    def kill(self) -> None:
        """kill -9 of every process: those that stand still would not notice the end of the others."""
        family = self.family if self.is_alive else []
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self.end()
        until(lambda: not psutil.wait_procs(family, timeout=0)[1], 20, "the end of all children")

    def operate(self, *words: str, **settings: str) -> Any:
        """The output of `pyoco-server-admin` in a shell on that machine."""
        place = {"PYOCO_DATA_DIR": str(self.data_dir), "PYOCO_NATS_URL": self.nats_url}
        return admin(self.environment | place | settings, *words)

    def payer(self, tenant_id: str) -> Payer:
        """A client with a new key of that tenant."""
        payer = Payer(tenant_id, {"X-API-Key": self.operate("api-key", "create", "--tenant", tenant_id)["api_key"]})
        until(lambda: self.knows(payer), 20, "the key is known")
        return payer

    def flow(self, flow_name: str = "hello", /, key: str = "", **params: Any) -> str:
        headers = {**self.headers, **({"Idempotency-Key": key} if key else {})}
        answer = self.client.post("/runs", json={"flow_name": flow_name, "params": params}, headers=headers)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["run_id"])

    def program(self, name: str = "calcA", *words: str, job_id: str = "") -> Any:
        """The answer to the submission."""
        asked = {"exec_name": name, "arg": list(words or ("--n", "3")), **({"job_id": job_id} if job_id else {})}
        answer = self.client.post("/jobs", data=asked, files={"file": ("in.txt", b"hello")}, headers=self.headers)
        assert answer.is_success, answer.text
        return answer.json()

    def priced(self, payer: Payer, key: str | None = None) -> str:
        answer = self.post(payer, key)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["run_id"])

    def read(self, path: str) -> Any:
        """As soon as it can be told: a gateway that does not hear NATS shows no list."""
        ask = functools.partial(self.client.get, path, headers=self.headers)
        answer = until(lambda: (found := ask()).status_code != 503 and found, what=path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def until_ended(self, run_id: str, status: str = "COMPLETED") -> dict[str, Any]:
        """As it is read once it has ended, which it does but once."""
        run: dict[str, Any] = until(lambda: (found := self.read(f"/runs/{run_id}"))["status"] in _ENDED and found, 60)
        assert run["status"] == status, run
        return run

    def hold_packs(self) -> None:
        """The next one is started, and never ends."""
        for each in self.family:
            with contextlib.suppress(psutil.Error):
                if is_pack_host(each):
                    each.suspend()

    def check_money(self, tenant_id: str) -> None:
        """Every run has ended, and all that was credited is there or was charged."""
        sums = self.operate("budget", "show", "--tenant", tenant_id)
        assert sums["held_usd_micros"] == 0
        assert sums["balance_usd_micros"] + sums["charged_usd_micros"] == sums["credited_usd_micros"]
        assert self.operate("budget", "verify")["ok"]


@contextlib.contextmanager
def everything(
    folder: Path, settings: Mapping[str, str] | None = None, *options: str, path: str = "/readyz"
) -> Iterator[Everything]:
    """Started, and ready for all kinds, or as `path` says. Killed at the end."""
    up = Everything(folder, settings or {}, *options)
    up.start()
    try:
        up.until_ready(path)
        yield up
    finally:
        up.client.close()
        up.kill()
