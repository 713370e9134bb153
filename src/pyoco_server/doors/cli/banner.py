"""What `pyoco-server up` prints when everything runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyoco_server.config import NatsBackendConfig
from pyoco_server.doors.release import RELEASE
from pyoco_server.logs import redact_url

__all__ = ["Facts", "banner"]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a person wants to know of a system that has just started."""

    config: NatsBackendConfig
    #: Where the gateway is reached from this machine: `http://127.0.0.1:8000`.
    address: str
    data_dir: Path
    nats_url: str
    has_examples: bool
    has_workers: bool
    #: The workers install what is uploaded.
    has_wheels: bool = False
    #: Others can reach it, and nobody has to show a key.
    is_open_to_everyone: bool
    #: The gateway knows of priced runs.
    has_priced: bool = True
    #: The workers run the sample programs.
    has_samples: bool = False
    #: Where a door is reached, for frames over TCP.
    frames: str | None = None
    #: That door asks for no key, although HTTP does.
    has_open_frames: bool = False


def banner(facts: Facts) -> str:
    """Lines to read and lines to paste; the pasted ones work as they are."""
    address = facts.address
    header = facts.config.http_api_key_header
    key = f" -H '{header}: YOUR_KEY'" if facts.config.http_auth_mode == "api_key" else ""
    body = (
        '{"flow_name": "hello", "params": {"name": "you"}}'
        if facts.has_examples
        else '{"flow_name": "your_flow", "params": {}}'
    )
    lines = [
        "",
        f"pyoco-server {RELEASE} is up",
        "",
        f"  open   {address}/",
        f"  API    {address}",
        f"  docs   {address}/docs",
        *([f"  TCP    {facts.frames}"] if facts.frames is not None else []),
        f"  NATS   {redact_url(facts.nats_url)}",
        f"  data   {facts.data_dir}",
        "",
        "Submit a run:",
        f"  curl -s -X POST {address}/runs{key} -H 'Content-Type: application/json' -d '{body}'",
        "",
        "See how it ends: the newest run, and all there is to know of one (put in the run_id of the answer):",
        f"  curl -s{key} '{address}/runs?limit=1'",
        f"  curl -s{key} {address}/runs/RUN_ID",
        "",
    ]
    if facts.has_samples:
        lines += [
            "Run a program; your own ones go into a directory that EXEC_DIR names:",
            f"  pyoco-client --server {address} exec calcA --wait -- one two",
            "",
        ]
    if facts.has_priced:
        lines += [
            "Priced runs need a key and a budget first: `pyoco-server-admin api-key create`, then `budget credit`; "
            "see the guide priced-runs.",
            "",
        ]
    if not facts.has_workers:
        command = f"PYOCO_NATS_URL={redact_url(facts.nats_url)} pyoco-worker --flow-resolver your_module:resolve"
        lines += ["No worker was started: runs wait until one comes:", f"  {command}", ""]
    if facts.has_wheels:
        lines += [
            "Give the workers new tasks, without a restart:",
            f"  curl -s{key} {address}/wheels -F wheel=@my_tasks-1.0-py3-none-any.whl",
            "",
        ]
    if facts.is_open_to_everyone:
        lines += ["Note: other machines can reach this, and no key is asked for: PYOCO_HTTP_AUTH_MODE=api_key", ""]
    if facts.has_open_frames:
        lines += ["Note: the TCP door asks for no key, although HTTP does (--open-frames)", ""]
    return "\n".join([*lines, "Ctrl-C stops everything.", ""])
