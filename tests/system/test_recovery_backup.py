"""Everything is wiped, and restored from a backup that was made under load: runs of all kinds, keys and money."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from support.priced.processes import Payer, until
from support.recoveries import Everything, everything

KINDS = ("flow", "program", "priced")


class Load:
    """One run of each kind after the other, until the end. What was accepted is kept, in its order."""

    def __init__(self, up: Everything, payer: Payer) -> None:
        self._up, self._payer = up, payer
        self.accepted: dict[str, list[str]] = {kind: [] for kind in KINDS}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._submit)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _submit(self) -> None:
        while not self._stopping.wait(0.05):
            self.accepted["flow"].append(self._up.flow(key=f"flow-{len(self.accepted['flow'])}"))
            self.accepted["program"].append(self._up.program()["run_id"])
            self.accepted["priced"].append(self._up.priced(self._payer))

    def until_more(self, count: int) -> dict[str, list[str]]:
        """What there is once so many more of each kind are accepted."""
        wanted = len(self.accepted["priced"]) + count
        until(lambda: len(self.accepted["priced"]) >= wanted, 60, "submissions")
        return {kind: list(run_ids) for kind, run_ids in self.accepted.items()}


def test_everything_is_as_it_was_at_the_backup_after_all_was_wiped(tmp_path: Path) -> None:
    """FLOW-19, FLOW-287, PRICED-4, GRID-10: what came later is told to be unknown, and no money is lost or doubled"""
    folder = str(tmp_path / "backup")
    with everything(tmp_path) as up:
        payer = up.payer("team-a")
        up.operate("budget", "credit", "--tenant", "team-a", "--usd", "90.0000", "--ref", "first")
        with Load(up, payer) as load:
            before = load.until_more(4)
            up.operate("backup", "--to", folder, "--json")
            meanwhile = load.until_more(1)
            late = load.until_more(2)
        up.kill()
        shutil.rmtree(up.data_dir)
    put_back(tmp_path, folder)

    with everything(tmp_path) as up:
        for kind in ("flow", "program"):
            for run_id in before[kind]:
                assert up.until_ended(run_id)["status"] == "COMPLETED"
        for run_id in before["priced"]:
            assert up.until_status(payer, run_id, "COMPLETED", "FAILED")["money_state"] == "SETTLED"
        for kind in ("flow", "program"):
            for run_id in set(late[kind]) - set(meanwhile[kind]):
                assert up.client.get(f"/runs/{run_id}").status_code == 404
        for run_id in set(late["priced"]) - set(meanwhile["priced"]):
            assert up.get(payer, run_id).status_code == 404
        assert up.flow(key="flow-0") == before["flow"][0]
        until(lambda: up.operate("budget", "show", "--tenant", "team-a")["held_usd_micros"] == 0, 60, "all have ended")
        up.check_money("team-a")
        assert up.operate("budget", "show", "--tenant", "team-a")["credited_usd_micros"] == 90_000_000


def put_back(tmp_path: Path, folder: str) -> None:
    """As the guide has it: NATS of `up` alone, and nobody who opens the ledger."""
    with everything(tmp_path, {"PYOCO_PRICED_ENABLED": "0"}, "--no-worker", "--no-keeper", path="/ready") as up:
        options = ("--replace", "--force", "--yes", "--json")
        done = up.operate("restore", "--from", folder, *options, PYOCO_PRICED_ENABLED="1")
        assert {"KV_pyoco_runs", "DPP_RUNS", "PYOCO_EXEC"} <= {stream["name"] for stream in done["streams"]}
        assert done["ledger"]
