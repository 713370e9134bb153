"""The handle of a run, for callers without an event loop."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar, cast

import httpx

from pyoco_server.app.card import card
from pyoco_server.app.clients import Clients
from pyoco_server.app.failures import RunTimeout
from pyoco_server.app.lines import LogLine
from pyoco_server.app.outcomes import FETCH, content_type_of, failure_of, inline_value, value_of
from pyoco_server.app.requests import changes_for, no_value, request_errors
from pyoco_server.app.values import Decoder
from pyoco_server.core.states import RunState

__all__ = ["RunHandle"]

T = TypeVar("T")
_NOT_READ: Any = object()


class RunHandle(Generic[T]):
    """A run, wherever it is. Its methods raise RequestFailed if the server refuses a request or is not there."""

    def __init__(self, clients: Clients, run_id: str, decoder: Decoder, flow_name: str | None = None) -> None:
        self._clients, self._decoder = clients, decoder
        #: `flow_name`: None of a run that was submitted elsewhere.
        self.id, self.flow_name = run_id, flow_name
        self._value: Any = _NOT_READ

    def __repr__(self) -> str:
        return f"<run {self.id}>"

    @property
    def status(self) -> str:
        """The status now: each access asks the server."""
        return cast(str, self.snapshot()["status"])

    def snapshot(self, *, records: bool = False) -> dict[str, Any]:
        """Return the latest state of the run; `records`: with its task records."""
        with request_errors(f"run {self.id}"):
            client = self._clients.blocking()
            return cast(dict[str, Any], client.get_run(self.id, include=["records"] if records else None))

    def wait(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait until the run has ended, and return its last state. Raises RunTimeout after `timeout` seconds."""
        try:
            with request_errors(f"run {self.id}"):
                client = self._clients.blocking()
                return cast(dict[str, Any], client.wait_run(self.id, math.inf if timeout is None else timeout))
        except TimeoutError as error:
            raise RunTimeout(self.id, str(error)) from None

    def result(self, timeout: float | None = None) -> T:
        """Wait for the end of the run and return its value; asked again, the same one.

        Raises RunFailed, RunCancelled, ResultUnavailable, and RunTimeout after `timeout` seconds.
        """
        if self._value is _NOT_READ:
            self._value = self._read(self.wait(timeout))
        return cast(T, self._value)

    def _read(self, snapshot: Mapping[str, Any]) -> Any:
        client = self._clients.blocking()
        with request_errors(f"result of run {self.id}"):
            if snapshot["status"] != RunState.COMPLETED:
                failed = client.get_run(self.id, include=["records"])
                raise failure_of(self.id, cast(dict[str, Any], failed))
            value = inline_value(self.id, snapshot, self._decoder)
            if value is not FETCH:
                return value
            try:
                data = client.read_run_result(self.id)
            except httpx.HTTPStatusError as error:
                if (missing := no_value(self.id, error)) is not None:
                    raise missing from None
                raise
        return value_of(self.id, data, content_type_of(snapshot), self._decoder)

    def logs(self, follow: bool = False, **filters: Any) -> Iterator[LogLine]:
        """Yield what the run has printed; `follow`: and what it prints, until it has ended. The filters are those of
        `PyocoHttpClient.run_logs`."""
        with request_errors(f"logs of run {self.id}"):
            for line in self._clients.blocking().run_logs(self.id, follow, **filters):
                yield LogLine(line)

    def watch(self) -> Iterator[dict[str, Any]]:
        """Yield the state of the run now, and each time it changes, until it has ended."""
        with request_errors(f"run {self.id}"):
            for event in self._clients.blocking().watch_run(self.id):
                if event["event"] == "snapshot":
                    yield cast(dict[str, Any], event["snapshot"])

    def cancel(self, reason: str | None = None, now: bool = False) -> dict[str, Any]:
        """Request the run to stop; `now`: without the time that its tasks have to do so themselves."""
        with request_errors(f"cancel run {self.id}"):
            client = self._clients.blocking()
            return cast(dict[str, Any], client.cancel_run(self.id, reason=reason, grace_sec=0.0 if now else None))

    def rerun(self, **changes: Any) -> RunHandle[T]:
        """Submit the run again, with other `params`, `tag`, `tags`, `delay`, `not_before`, `retry` or `timeout` if they
        are given."""
        with request_errors(f"rerun of run {self.id}"):
            again = self._clients.blocking().rerun_run(self.id, **changes_for(changes))
        return RunHandle(self._clients, again["run_id"], self._decoder, self.flow_name)

    def list_page(self, filters: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str | None]:
        """Return a page of all runs of this server, and the cursor of the next one."""
        with request_errors("list of runs"):
            page = self._clients.blocking().list_runs_vnext(**filters)
        return cast(list[dict[str, Any]], page["items"]), page["next_cursor"]

    def pause(self, seconds: float) -> None:
        """Wait between two reads of states. Raises RunTimeout if no further read could show anything new."""
        try:
            self._clients.pause(seconds)
        except TimeoutError as error:
            raise RunTimeout(self.id, str(error)) from None

    def _repr_html_(self) -> str:
        return card(self)
