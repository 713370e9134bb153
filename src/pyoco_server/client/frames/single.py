"""A client of one group (section 17.1)."""

from __future__ import annotations

from collections.abc import Sequence

from pyoco_server.client.frames.link import LinkSettings
from pyoco_server.client.frames.multi import GridMultiClient
from pyoco_server.client.frames.shares import Spread
from pyoco_server.core.frames.messages import CAP_DEFAULT

__all__ = ["GridClient"]


class GridClient(GridMultiClient):
    """Submits jobs through a door of a group, and through its other doors if that one is lost.

        async with GridClient("127.0.0.1", 5000, "clientA", desired=8) as client:
            result = await client.run(JobRequest(exec_name="calcA", args=("--n", "3")))

    Every job stays in a table from submission to result and is submitted again under its JobId after each reconnect.
    """

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str,
        *,
        desired: int = CAP_DEFAULT,
        doors: Sequence[str] = (),
        token: str | None = None,
        settings: LinkSettings | None = None,
    ) -> None:
        """`doors` are further doors of the same group, as `host:port`. Raises UsageError, GridRefused."""
        first = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        super().__init__(
            client_id,
            ["|".join((first, *doors))],
            desired_total=desired,
            spread=Spread(grace_seconds=None),
            token=token,
            settings=settings,
        )
