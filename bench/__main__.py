"""`python -m bench [NAME …]`: all measurements of the table below without a name. Takes some minutes.

`python -m bench soak [OPTION …]` is none of them: it takes a quarter of an hour, and has options of its own.

Everything runs on this machine as real processes. Rates are medians of interleaved rounds; compare ratios, not rates.
"""

from __future__ import annotations

import os
import platform
import sys

from bench import (
    app_testing,
    authenticated,
    batch,
    commands,
    dashboard,
    delays,
    drain,
    latency,
    lists,
    logs,
    mcp_calls,
    memory,
    ocr_pack,
    parts,
    priced,
    programs,
    python_door,
    schedules,
    scrape,
    soak,
    submit,
    url_pack,
    watching,
    wheel_sync,
    wheels,
)
from bench.stack import stack

_MEASURES = {
    "submit": submit.main,
    "batch": batch.main,
    "latency": latency.main,
    "watch": watching.main,
    "drain": drain.main,
    "memory": memory.main,
    "lists": lists.main,
    "logs": logs.main,
    "parts": parts.main,
    "metrics": scrape.main,
    "auth": authenticated.main,
    "commands": commands.main,
    "wheels": wheels.main,
    "wheelsync": wheel_sync.main,
    "dashboard": dashboard.main,
    "priced": priced.main,
    "ocr": ocr_pack.main,
    "url": url_pack.main,
    "mcp": mcp_calls.main,
    "programs": programs.main,
    "delays": delays.main,
    "schedules": schedules.main,
    "python": python_door.main,
    "testing": app_testing.main,
}

#: The same with fewer rounds: for a first look, and not part of all measurements.
_SHORT = {"logs-short": logs.short}


def _print_machine() -> None:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    print(f"{python}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")


def main() -> None:
    if sys.argv[1:2] == ["soak"]:
        _print_machine()
        soak.main(sys.argv[2:])
        return
    chosen = sys.argv[1:] or list(_MEASURES)
    measures = _MEASURES | _SHORT
    unknown = [name for name in chosen if name not in measures]
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}; choose from {', '.join(measures)}")
    _print_machine()
    for name in chosen:
        with stack() as running:
            measures[name](running)


if __name__ == "__main__":
    main()
