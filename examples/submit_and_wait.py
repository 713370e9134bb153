"""Submit a run over HTTP, wait for its end, and show what its tasks returned.

    python -m examples.submit_and_wait hello name=you
    python -m examples.submit_and_wait examples/hello.yaml

The gateway is PYOCO_SERVER_URL or the server that runs on this machine; the key, if one is needed, PYOCO_API_KEY.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyoco_server import PyocoHttpClient


def submit(client: PyocoHttpClient, what: str, params: dict[str, str]) -> str:
    """A file is uploaded; anything else is the name of a flow that the workers know. Returns the run id."""
    if what.endswith((".yaml", ".yml")):
        path = Path(what)
        accepted = client.submit_run_yaml(path.read_text(encoding="utf-8"), tag="default", flow_name=path.stem)
    else:
        accepted = client.submit_run(what, params=params)
    return str(accepted["run_id"])


def outputs(client: PyocoHttpClient, run_id: str) -> dict[str, Any]:
    """What each task returned."""
    records = client.get_tasks(run_id)["task_records"]
    return {name: record.get("output") for name, record in records.items()}


def main(arguments: list[str]) -> int:
    what, *pairs = arguments or ["hello"]
    params = dict(pair.split("=", 1) for pair in pairs)
    with PyocoHttpClient() as client:
        run_id = submit(client, what, params)
        print(f"submitted {run_id}")
        run = client.wait_run(run_id, timeout_sec=60)
        print(f"{run['status']} on {run.get('worker_id')}", run["error"] or "")
        for name, output in outputs(client, run_id).items():
            print(f"  {name}: {output!r}")
    return 0 if run["status"] == "COMPLETED" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
