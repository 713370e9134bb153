"""`make up`: `pyoco-server up`, which ends with 0 after Ctrl-C, so that make reports no error (CLI-13)."""
# ruff: noqa: INP001  (a script, not a package)

from __future__ import annotations

import sys

from pyoco_server.doors.cli.server import cli
from pyoco_server.doors.cli.shell import run

_INTERRUPTED = 130


def main() -> None:
    try:
        run(cli, "pyoco-server")
    except SystemExit as end:
        sys.exit(0 if end.code == _INTERRUPTED else end.code)


if __name__ == "__main__":
    main()
