"""A client for the HTTP API (section 18.4 of the contract)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import quote

import httpx

__all__ = ["PyocoHttpClient"]

_TERMINAL = frozenset({"COMPLETED", "FAILED", "CANCELLED"})


class PyocoHttpClient:
    """Synchronous. HTTP errors surface as `httpx.HTTPStatusError`; the error body stays on the response (FLOW-415).

    >>> client = PyocoHttpClient("http://127.0.0.1:8000")                  # doctest: +SKIP
    >>> run = client.submit_run("hello", params={"name": "you"})           # doctest: +SKIP
    >>> client.wait_run(run["run_id"])["status"]                           # doctest: +SKIP
    'COMPLETED'
    """

    def __init__(
        self, base_url: str, api_key: str | None = None, api_key_header: str = "X-API-Key", timeout: float = 30.0
    ) -> None:
        headers = {api_key_header: api_key} if api_key else None
        self._client = httpx.Client(base_url=base_url, headers=headers, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def health(self) -> dict[str, Any]:
        return self._object("GET", "/health")

    def submit_run(
        self,
        flow_name: str,
        params: dict[str, Any] | None = None,
        tag: str | None = None,
        tags: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """Returns `run_id` and `status`: the run is recorded and queued."""
        labels = list(tags) if tags is not None else None
        asked = {"flow_name": flow_name, "params": params, "tag": tag, "tags": labels}
        return self._object("POST", "/runs", json={name: value for name, value in asked.items() if value is not None})

    def submit_run_yaml(self, workflow_yaml: str, tag: str, flow_name: str = "main") -> dict[str, Any]:
        """Returns `run_id` and `status`. The params are the file's `flow.defaults`."""
        files = {"workflow": ("flow.yaml", workflow_yaml.encode(), "application/yaml")}
        return self._object("POST", "/runs/yaml", files=files, data={"flow_name": flow_name, "tag": tag})

    def get_run(self, run_id: str, include: Sequence[str] | None = None) -> dict[str, Any]:
        return self._object("GET", _path(run_id), params={"include": list(include)} if include else None)

    def get_tasks(self, run_id: str) -> dict[str, Any]:
        return self._object("GET", _path(run_id) + "/tasks")

    def list_runs(
        self,
        status: str | None = None,
        flow: str | None = None,
        tag: str | None = None,
        limit: int | None = None,
        include: Sequence[str] | None = None,
        workflow_yaml_sha256: str | None = None,
    ) -> list[dict[str, Any]]:
        """Newest update first."""
        asked = {
            "status": status,
            "flow": flow,
            "tag": tag,
            "limit": limit,
            "include": list(include) if include else None,
            "workflow_yaml_sha256": workflow_yaml_sha256,
        }
        params = {name: value for name, value in asked.items() if value is not None}
        return cast(list[dict[str, Any]], self._call("GET", "/runs", params=params))

    def cancel_run(self, run_id: str, wait: bool = False, timeout_sec: float | None = None) -> dict[str, Any]:
        """Ask for a run to be stopped. `wait`: returns its terminal snapshot, or raises TimeoutError (FLOW-416)."""
        snapshot = self._object("POST", _path(run_id) + "/cancel")
        return self.wait_run(run_id, timeout_sec) if wait else snapshot

    def wait_run(self, run_id: str, timeout_sec: float | None = None) -> dict[str, Any]:
        """The terminal snapshot. Raises TimeoutError when the run has not ended after `timeout_sec` (60 s)."""
        seconds = 60.0 if timeout_sec is None else timeout_sec
        deadline = time.monotonic() + seconds
        pause = 0.005
        while True:
            snapshot = self.get_run(run_id)
            if snapshot["status"] in _TERMINAL:
                return snapshot
            if time.monotonic() + pause > deadline:
                raise TimeoutError(f"run {run_id} is still {snapshot['status']} after {seconds:g} s")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.5)

    def _object(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        return cast(dict[str, Any], self._call(method, path, **more))

    def _call(self, method: str, path: str, **more: Any) -> Any:
        response = self._client.request(method, path, **more)
        response.raise_for_status()
        return response.json()


def _path(run_id: str) -> str:
    """Whatever is given as an id, it reaches no other path: dots too, since `..` would lead upwards."""
    return "/runs/" + quote(run_id, safe="").replace(".", "%2E")
