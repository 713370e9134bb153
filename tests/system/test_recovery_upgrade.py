"""Today's processes on what earlier versions left behind when they were killed. `tools/keep_store.py` has made it."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support.priced.processes import Payer, until
from support.recoveries import Everything, everything

STORES = Path(__file__).parents[1] / "stores"
#: What a state that was left behind becomes.
ENDS = {
    "COMPLETED": "COMPLETED",
    "FAILED": "FAILED",
    "CANCELLED": "CANCELLED",
    "PENDING": "COMPLETED",
    "RUNNING": "COMPLETED",
    "CANCELLING": "CANCELLED",
}
PRICED_ENDS = {"COMPLETED": "COMPLETED", "FAILED": "FAILED", "QUEUED": "COMPLETED", "PROCESSING": "FAILED"}


@pytest.mark.parametrize("name", ["first", "flows", "priced", "programs"])
def test_everything_that_an_earlier_version_left_behind_reaches_its_end(tmp_path: Path, name: str) -> None:
    """FLOW-19, FLOW-285, PRICED-4, PRICED-30, GRID-10: in whichever state; keys, receipts and money are as they were"""
    with tarfile.open(STORES / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / "data").rename(tmp_path / "up")
    made = json.loads((tmp_path / "store.json").read_text())
    with everything(tmp_path, made["settings"]) as up:
        up.headers = {"X-API-Key": made["api_key"]}
        check_flows(up, made["flows"])
        if "wheel" in made:
            content = up.client.get(f"/wheels/{made['wheel']['name']}", headers=up.headers).content
            assert hashlib.sha256(content).hexdigest() == made["wheel"]["sha256"]
        if "priced" in made:
            check_priced(up, made["priced"])
        check_programs(up, made.get("programs", {}))
        up.until_ended(up.flow())
        check_log(up, made.get("priced", {}))


def check_log(up: Everything, priced: Mapping[str, Any]) -> None:
    """No error, except the alarm of PRICED-50 for runs whose reservation was open when the store was made. That is more
    than a day ago, so the auditor reports each that it sees before another loop of the keeper has ended the run."""
    left_open = {run_id for left_as in ("QUEUED", "PROCESSING") for run_id in priced.get(left_as, ())}
    whole = up.output.read_text().rpartition("\n")[0]
    lines = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
    errors = [line for line in lines if line["level"] in {"ERROR", "CRITICAL"}]
    assert [each for each in errors if each.get("alarm") != "old_reservation" or each["run_id"] not in left_open] == []


def check_flows(up: Everything, flows: Mapping[str, Any]) -> None:
    expected = {run_id: status for left_as, status in ENDS.items() for run_id in flows[left_as]}
    for run_id, status in expected.items():
        attempt = 2 if run_id in flows["RUNNING"] else 1
        assert up.until_ended(run_id, status)["attempt"] == attempt

    def listed() -> dict[str, str]:
        return {run["run_id"]: run["status"] for run in up.read("/runs?kind=flow&limit=200")}

    until(lambda: listed() == expected, 20, "the list")
    if "receipt" not in flows:
        return  # letters of the first versions name no tenant: nobody's key opens them
    assert set(flows["FAILED"]) <= {letter["run_id"] for letter in up.read("/dlq?limit=200")["items"]}
    assert up.flow(key=flows["receipt"]["key"], name="Bob") == flows["receipt"]["run_id"]


def check_priced(up: Everything, priced: Mapping[str, Any]) -> None:
    payer, before = Payer("team-a", up.headers), priced["sums"]
    for left_as, status in PRICED_ENDS.items():
        for run_id in priced[left_as]:
            up.until_status(payer, run_id, status)
    first = priced["COMPLETED"][0]
    assert up.client.get(f"/v1/runs/{first}/envelope", headers=up.headers).status_code == 200
    assert up.priced(payer, priced["key"]) == first
    up.check_money("team-a")
    sums = up.operate("budget", "show", "--tenant", "team-a")
    assert sums["credited_usd_micros"] == before["credited_usd_micros"]
    # Two that waited, and the least for the one whose worker was lost.
    assert sums["charged_usd_micros"] == before["charged_usd_micros"] + 2 * 50_000 + 5_000


def check_programs(up: Everything, programs: Mapping[str, Any]) -> None:
    """Those that were left, where the version knew any; and one of today."""
    for left_as, status in ENDS.items():
        for run_id in programs.get(left_as, ()):
            up.until_ended(run_id, status)
    answer = up.program("calcA", "--n", "3", job_id=programs.get("job_id", ""))
    assert answer["duplicate"] == bool(programs)
    up.until_ended(answer["run_id"])
    archive = up.client.get(f"/runs/{answer['run_id']}/artifacts", headers=up.headers)
    assert archive.content.startswith(b"PK")
