"""Check whether a model's server accepts connections. Sends no data, so the check costs nothing there."""

from __future__ import annotations

import socket
from typing import Final
from urllib.parse import urlsplit

__all__ = ["why_not_reached"]

_SECONDS: Final = 3.0
_PORTS: Final = {"http": 80, "https": 443}


def why_not_reached(url: str, seconds: float = _SECONDS) -> str | None:
    """Return why the server cannot be reached. None: it accepts connections. Blocks.

    The text does not quote the address, which may be secret.
    """
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or _PORTS[parts.scheme]), timeout=seconds).close()
    except TimeoutError:
        return f"no answer within {seconds:g} s"
    except socket.gaierror:
        return "its name is not known"
    except OSError as error:
        return error.strerror or type(error).__name__
    return None
