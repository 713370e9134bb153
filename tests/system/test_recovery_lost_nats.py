"""The store of NATS is lost, and the ledger is not: priced runs come back from it, the rest is told to be gone."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import urlsplit

from support.priced.processes import until
from support.recoveries import everything


def test_priced_runs_come_back_from_the_ledger_when_the_store_of_nats_is_lost(tmp_path: Path) -> None:
    """PRICED-4, PRICED-104, PRICED-158: none is lost, none is paid twice; what is gone is said to be gone"""
    with everything(tmp_path) as up:
        payer = up.payer("team-a")
        up.operate("budget", "credit", "--tenant", "team-a", "--usd", "5.0000", "--ref", "first")
        flow, program = up.flow(key="flow-1"), up.program()["run_id"]
        ended = [up.priced(payer) for _ in range(3)]
        for run_id in ended:  # every host is warm then
            up.until_status(payer, run_id, "COMPLETED")
        for run_id in (flow, program):
            up.until_ended(run_id)
        up.hold_packs()
        started = up.priced(payer)
        up.until_status(payer, started, "PROCESSING")
        waiting = [up.priced(payer, f"waiting-{number}") for number in range(3)]
        up.kill()
        shutil.rmtree(up.data_dir / "nats" / "store")

        up.start()
        up.until_ready()
        assert up.get(payer, ended[0]).status_code == 401, "keys were in NATS"
        payer = up.payer("team-a")
        for run_id in waiting:
            assert up.until_status(payer, run_id, "COMPLETED")["money_state"] == "SETTLED"
        assert up.until_status(payer, started, "FAILED")["result"]["reason_code"] == "WORKER_TIMEOUT"
        assert up.priced(payer, "waiting-0") == waiting[0]
        for run_id in (*ended, started, *waiting):
            until(lambda run_id=run_id: up.listed(run_id), 20, "the list")  # type: ignore[misc]
        shown = up.get(payer, ended[0]).json()
        assert (shown["status"], shown["cost"]["used_usd"]) == ("COMPLETED", "0.0500")
        gone = f"/v1/runs/{ended[0]}/envelope"
        until(lambda: up.client.get(gone, headers=payer.headers).status_code == 410, 20, "the result is gone")
        assert up.client.get(urlsplit(shown["result"]["presigned_url"]).path).status_code == 404
        up.check_money("team-a")

        for path in (flow, f"{flow}/tasks", f"{flow}/watch", program, f"{program}/artifacts"):
            assert up.client.get(f"/runs/{path}").status_code == 404, path
        listed = {run["run_id"] for run in up.read("/runs?limit=200")}
        assert listed == {*ended, started, *waiting}, "nobody shows what is gone"
        again = up.flow(key="flow-1")
        assert again != flow, "so were the receipts"
        up.until_ended(again)
        up.until_ended(up.program()["run_id"])
