"""An earlier version beside this one, as while one process after the other is upgraded: `tools/roll_upgrade.py REV`.

It needs the history of the repository, and is no test for that reason. Everything of the earlier version runs; then
comes a gateway of today, whose runs the earlier worker does; then keeper and worker of today. Each time runs of all
kinds that both know are submitted, and have to be COMPLETED. It ends with a line for each step, or with what went
wrong.
"""
# ruff: noqa: INP001, T201  (a script, which talks)

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
from keep_store import ROOT, Earlier, exported, until

sys.path.insert(0, str(ROOT / "tests"))

from support.chaos import Process
from support.priced.processes import Gateway, Payer, Site, clean_environment
from support.servers import NatsServer


class _Server(NatsServer):
    """One that belongs to somebody else."""

    def __init__(self, url: str) -> None:
        self._url = url

    @property
    def url(self) -> str:
        return self._url


def until_completed(http: httpx.Client, path: str) -> None:
    until(lambda: http.get(path).json()["status"] == "COMPLETED" or None, path)


def run_all(where: str, http: httpx.Client, payer: Payer | None, *, has_programs: bool) -> None:
    """Some of each kind, through this gateway."""
    flows = [http.post("/runs", json={"flow_name": "hello"}).json()["run_id"] for _ in range(5)]
    if has_programs:
        asked, files = {"exec_name": "calcA", "arg": ["--n", "3"]}, {"file": ("in.txt", b"hello")}
        flows.append(http.post("/jobs", data=asked, files=files).json()["run_id"])
    for run_id in flows:
        until_completed(http, f"/runs/{run_id}")
    packs: list[str] = []
    for number in range(2 if payer else 0):
        body: dict[str, Any] = {"pack_type": "decision", "inputs": {"question": "Ship?"}}
        body |= {"reservation": {"max_cost_usd": "0.2500"}}
        key = {"Idempotency-Key": f"{where.replace(' ', '-')}-{number}"}
        packs.append(http.post("/v1/runs", json=body, headers=key).json()["run_id"])
    for run_id in packs:
        until_completed(http, f"/v1/runs/{run_id}")
    listed = http.get("/runs", params={"limit": 200})
    assert listed.status_code == 200, listed.text
    print(f"{where}: {len(flows)} flows and programs, {len(packs)} packs COMPLETED, {len(listed.json())} listed")


def worker_of_today(site: Site) -> Process:
    programs = ROOT / "src" / "pyoco_server" / "executors" / "program" / "samples"
    offers = ["--flow-resolver", "examples.flows:resolve", "--exec-dir", str(programs)]
    command: list[str | Path] = [
        Path(sys.executable).parent / "pyoco-worker",
        "--worker-id",
        "today",
        "--slots",
        "2",
        *offers,
    ]
    return Process("worker", command, site.environment | {"PYTHONPATH": str(ROOT)}, site.folder)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="pyoco-roll-") as folder:
        place = Path(folder)
        earlier = Earlier(exported(sys.argv[1], place / "tree"), place / "data")
        settings = {**earlier.settings, "PYOCO_LEDGER_URL": f"sqlite:///{place / 'data' / 'ledger.db'}"}
        site: Site | None = None
        worker: Process | None = None
        try:
            earlier.start()
            payer = Payer("team-a", {"X-API-Key": earlier.key}) if earlier.has_priced else None
            if payer is not None:
                earlier.admin("budget", "credit", "--tenant", "team-a", "--usd", "50.0000")
            run_all("earlier alone", earlier.http, payer, has_programs=earlier.has_programs)

            (place / "now").mkdir()
            more = {} if payer else {"PYOCO_PRICED_ENABLED": "0"}
            site = Site(place / "now", _Server(earlier.nats_url), clean_environment({**settings, **more}))
            gateway: Gateway = site.gateway("gateway")
            gateway.until_ready("/ready" if payer is None else "/readyz")
            today = httpx.Client(base_url=gateway.address, headers=earlier.http.headers, timeout=30)
            run_all("gateway of today, earlier worker", today, payer, has_programs=earlier.has_programs)
            run_all("earlier gateway beside it", earlier.http, payer, has_programs=earlier.has_programs)

            site.keeper("keeper")
            worker = worker_of_today(site)
            worker.start()
            until(lambda: len(today.get("/workers").json()) >= 2 or None, "both workers")
            run_all("everything twice, earlier gateway", earlier.http, payer, has_programs=earlier.has_programs)
            run_all("everything twice, gateway of today", today, payer, has_programs=True)
            run_all("earlier gateway, which lists what it does not know", earlier.http, payer, has_programs=False)
        finally:
            if worker is not None:
                worker.end()
            if site is not None:
                site.end()
            earlier.kill()


if __name__ == "__main__":
    main()
