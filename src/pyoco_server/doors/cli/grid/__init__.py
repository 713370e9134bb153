"""The `pyoco-grid` command: doors, workers and clients of programs (section 25 of the grid contract)."""

from __future__ import annotations

from pyoco_server.doors.cli.grid.group import COMMANDS, cli, main

__all__ = ["COMMANDS", "cli", "main"]
