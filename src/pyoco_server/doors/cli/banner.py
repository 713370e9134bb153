"""The text that `pyoco-server up` prints when everything runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyoco_server.config import NatsBackendConfig
from pyoco_server.doors.release import RELEASE
from pyoco_server.logs import redact_url

__all__ = ["BannerFacts", "banner"]


@dataclass(frozen=True, kw_only=True)
class BannerFacts:
    """What a user needs to know about the system that has just started."""

    config: NatsBackendConfig
    #: The URL of the gateway on this machine: `http://127.0.0.1:8000`.
    address: str
    data_dir: Path
    nats_url: str
    has_examples: bool
    has_workers: bool
    #: The workers install uploaded wheels.
    has_wheels: bool = False
    #: Other machines can reach it, and no API key is required.
    is_open_to_everyone: bool
    #: Priced runs are enabled.
    has_priced: bool = True
    #: The workers run the sample programs.
    has_samples: bool = False
    #: The address of the door for frames over TCP.
    frames: str | None = None
    #: That door asks for no key, although HTTP does.
    has_open_frames: bool = False


def banner(facts: BannerFacts) -> str:
    """Return the lines of the banner. Its commands can be pasted unchanged."""
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
        f"  open           {address}/",
        f"  API            {address}",
        f"  API reference  {address}/docs",
        *([f"  TCP            {facts.frames}"] if facts.frames is not None else []),
        f"  NATS           {redact_url(facts.nats_url)}",
        f"  data           {facts.data_dir}",
        "",
        "Submit a run:",
        f"  curl -s -X POST {address}/runs{key} -H 'Content-Type: application/json' -d '{body}'",
        "",
        "See its outcome: the newest run, or one run in detail (insert the run_id of the response):",
        f"  curl -s{key} '{address}/runs?limit=1'",
        f"  curl -s{key} {address}/runs/RUN_ID",
        "",
    ]
    if facts.has_samples:
        lines += [
            "Run a program; put your own into a directory and name it in EXEC_DIR:",
            f"  pyoco-client --server {address} program run calcA --wait -- one two",
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
        lines += ["No worker was started: runs wait until you start one:", f"  {command}", ""]
    if facts.has_wheels:
        lines += [
            "Install new tasks on the workers, without a restart:",
            f"  curl -s{key} {address}/wheels -F wheel=@my_tasks-1.0-py3-none-any.whl",
            "",
        ]
    if facts.is_open_to_everyone:
        lines += [
            "Note: other machines can reach this server without a key; to require one: PYOCO_HTTP_AUTH_MODE=api_key",
            "",
        ]
    if facts.has_open_frames:
        lines += ["Note: the TCP door requires no key, although HTTP does (--open-frames)", ""]
    return "\n".join([*lines, "Ctrl-C stops everything.", ""])
