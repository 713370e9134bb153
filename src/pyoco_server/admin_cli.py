"""`python -m pyoco_server.admin_cli`: the same as the command `pyoco-server-admin`."""

from pyoco_server.doors.cli.admin import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
