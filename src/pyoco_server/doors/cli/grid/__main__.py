"""`python -m pyoco_server.doors.cli.grid`: the same as `pyoco-grid`."""

from __future__ import annotations

from pyoco_server.doors.cli.grid import main

main()
