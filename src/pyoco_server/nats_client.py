"""A small NATS client for programs next to the workers that do not need HTTP in between."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from pyoco_server.actions.read import find_run
from pyoco_server.actions.submit import submit
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.names import tag_problem
from pyoco_server.core.run import Caller, Submission
from pyoco_server.core.snapshot import shown_snapshot
from pyoco_server.ports.backend import Backend
from pyoco_server.wiring import backend as wiring

__all__ = ["PyocoNatsClient"]

_NOBODY = Caller()


class PyocoNatsClient:
    """Create it with `connect`. Its guarantee is that of the gateway: a returned run id is recorded and queued."""

    def __init__(self, stack: contextlib.AsyncExitStack, backend: Backend) -> None:
        self._stack, self._backend = stack, backend

    @classmethod
    async def connect(cls, config: NatsBackendConfig | None = None) -> PyocoNatsClient:
        """Connect. Raises Unavailable (ERR-PYOCO-0003) without NATS."""
        async with contextlib.AsyncExitStack() as stack:
            opened = wiring.open_backend(config or NatsBackendConfig.from_env(), "pyoco-client")
            backend = await stack.enter_async_context(opened)
            return cls(stack.pop_all(), backend)

    async def submit_run(
        self,
        flow_name: str,
        params: Mapping[str, Any] | None = None,
        tag: str | None = None,
        tags: Sequence[str] | None = None,
    ) -> str:
        """Submit a run and return its id. Raises ValueError for a bad name, Refused (too large), Unavailable."""
        tag = self._backend.config.default_tag if tag is None else tag
        problem = tag_problem(tag) if flow_name else "a flow name must not be empty"
        if problem is not None:
            raise ValueError(problem)
        ask = Submission(
            flow_name=flow_name,
            tag=tag,
            tags=tuple(tags) if tags is not None else (tag,),
            params=dict(params or {}),
        )
        return (await submit(self._backend, _NOBODY, ask)).run.run_id

    async def get_run(self, run_id: str) -> dict[str, Any]:
        """Return the latest snapshot, including task records. Raises RunNotFound."""
        return shown_snapshot((await find_run(self._backend, run_id)).run)

    async def close(self) -> None:
        """Close the connection. Can be called twice."""
        await self._stack.aclose()
