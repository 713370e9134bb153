"""Submits the flows of an app."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pyoco_server.app.aio_handles import AsyncRunHandle
from pyoco_server.app.clients import Clients
from pyoco_server.app.handles import RunHandle
from pyoco_server.app.requests import refusal_of, request_errors
from pyoco_server.app.run_set import RunSet
from pyoco_server.app.values import Decoder

if TYPE_CHECKING:
    from pyoco_server.app.app import App
    from pyoco_server.app.flows import AppFlow
    from pyoco_server.client.run_results import RunBatchItem

__all__ = ["Submitter"]

T = TypeVar("T")
#: APP-6, and the gateway's own limit.
_BATCH_MAX = 1000


class Submitter:
    """The way of an app to its server."""

    def __init__(self, app: App, clients: Clients) -> None:
        self._app, self._clients = app, clients

    def handle(self, run_id: str) -> RunHandle[Any]:
        return RunHandle(self._clients, run_id, Decoder(pickles=self._app.pickle))

    def submit(self, flow: AppFlow[..., T], params: dict[str, Any]) -> RunHandle[T]:
        with request_errors(f"flow {flow.name}"):
            accepted = self._clients.blocking().submit_run(flow.name, params, **_asked(flow))
        return RunHandle(self._clients, accepted["run_id"], _decoder_of(flow), flow.name)

    async def asubmit(self, flow: AppFlow[..., T], params: dict[str, Any]) -> AsyncRunHandle[T]:
        with request_errors(f"flow {flow.name}"):
            accepted = await self._clients.of_loop().submit_run(flow.name, params, **_asked(flow))
        return AsyncRunHandle(self._clients, accepted["run_id"], _decoder_of(flow), flow.name)

    def map(self, flow: AppFlow[..., T], items: Sequence[dict[str, Any]]) -> RunSet[T]:
        """Submit one run for each item. Raises RequestFailed if one is refused; its note names those accepted."""
        asked = _asked(flow)
        key, decoder = asked.pop("idempotency_key"), _decoder_of(flow)
        handles: list[RunHandle[T]] = []
        refusals = []
        for number, first in enumerate(range(0, len(items), _BATCH_MAX)):
            some = items[first : first + _BATCH_MAX]
            batch = [{"flow_name": flow.name, "params": params, **asked} for params in some]
            with request_errors(f"flow {flow.name}"):
                answer = self._clients.blocking().submit_batch(
                    cast("list[RunBatchItem]", batch), idempotency_key=key and (f"{key}-{number}" if number else key)
                )
            for line in answer["items"]:
                if "run_id" in line:
                    handles.append(RunHandle(self._clients, line["run_id"], decoder, flow.name))
                else:
                    doing = f"flow {flow.name}, item {first + line['index']}"
                    refusals.append(refusal_of(doing, line.get("error"), line.get("status_code")))
        if refusals:
            for error in itertools.islice(refusals, 1, 10):
                refusals[0].add_note(str(error))
            refusals[0].accepted = RunSet(self._clients, handles)
            raise refusals[0]
        return RunSet(self._clients, handles)


def _decoder_of(flow: AppFlow[..., Any]) -> Decoder:
    return Decoder(flow.signature.returns, pickles=flow.app.pickle)


def _asked(flow: AppFlow[..., Any]) -> dict[str, Any]:
    chosen = flow.chosen
    tags = None if chosen.tags is None else list(chosen.tags)
    return {"tag": chosen.tag, "tags": tags, "idempotency_key": chosen.idempotency_key, **chosen.run}
