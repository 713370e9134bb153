"""Events of a run as a scripted gateway sends them, for tests of the clients."""

from __future__ import annotations

from typing import Any

__all__ = ["AWAY", "COMPLETED", "CROWDED", "SNAPSHOT", "seen"]

CROWDED = {"detail": "too many watchers", "err_id": "ERR-PYOCO-0030", "msg_id": "m", "message": "m", "message_ja": "m"}
AWAY = CROWDED | {"detail": "nats unavailable", "err_id": "ERR-PYOCO-0003"}
SNAPSHOT = {"run_id": "r", "status": "RUNNING", "updated_at": 1.0}
COMPLETED = SNAPSHOT | {"status": "COMPLETED"}


async def seen(client: Any, **asked: Any) -> list[tuple[str, str]]:
    return [(each["event"], each["snapshot"]["status"]) async for each in client.watch_run("r", **asked)]
