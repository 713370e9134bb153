"""`python -m bench [submit] [latency] [drain] [memory] [parts]`: all of them without a name. Takes about two minutes.

Everything runs on this machine as real processes. Rates are medians of interleaved rounds; compare ratios, not rates.
"""

from __future__ import annotations

import os
import platform
import sys

from bench import drain, latency, memory, parts, submit
from bench.stack import stack

_MEASURES = {
    "submit": submit.main,
    "latency": latency.main,
    "drain": drain.main,
    "memory": memory.main,
    "parts": parts.main,
}


def main() -> None:
    chosen = sys.argv[1:] or list(_MEASURES)
    unknown = [name for name in chosen if name not in _MEASURES]
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}; choose from {', '.join(_MEASURES)}")
    python = f"{platform.python_implementation()} {platform.python_version()}"
    print(f"{python}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    for name in chosen:
        with stack() as running:
            _MEASURES[name](running)


if __name__ == "__main__":
    main()
