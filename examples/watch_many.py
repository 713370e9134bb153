"""Submit many runs at once and show each as it changes, with one connection per run and no thread.

    python -m examples.watch_many Anna Bert Carla

The gateway is PYOCO_SERVER_URL or the server that runs on this machine; the key, if one is needed, PYOCO_API_KEY.
"""

from __future__ import annotations

import asyncio
import sys

from pyoco_server import AsyncPyocoHttpClient


async def follow(client: AsyncPyocoHttpClient, name: str, run_id: str) -> str:
    """Returns how the run has ended. A gateway that restarts meanwhile makes no difference."""
    status = "PENDING"
    async for event in client.watch_run(run_id):
        snapshot = event["snapshot"]
        if snapshot["status"] != status:
            status = snapshot["status"]
            print(f"{name}: {status}", snapshot.get("error") or "")
    return status


async def main(names: list[str]) -> int:
    async with AsyncPyocoHttpClient() as client:
        batch = await client.submit_batch([{"flow_name": "hello", "params": {"name": name}} for name in names])
        run_ids = [line["run_id"] for line in batch["items"]]
        ended = await asyncio.gather(*(follow(client, *each) for each in zip(names, run_ids, strict=True)))
    return 0 if set(ended) == {"COMPLETED"} else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:] or ["Anna", "Bert", "Carla"])))
