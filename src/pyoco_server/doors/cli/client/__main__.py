"""`python -m pyoco_server.doors.cli.client`"""

from pyoco_server.doors.cli.client import main

if __name__ == "__main__":
    main()
