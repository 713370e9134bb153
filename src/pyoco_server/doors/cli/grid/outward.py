"""How a command speaks to doors: the TLS options of clients, workers and routers (GRID-166)."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from pyoco_server.frames.tls import client_context

__all__ = ["tls_to_doors"]


def tls_to_doors(given: Mapping[str, Any], option: str = "--tls") -> ssl.SSLContext | None:
    """Of the flag `option` and of the files `option`-ca, -cert and -key. None: in the clear, as none of them is given.

    An empty file name is given, too: a variable of the shell that is not set must not turn TLS off. Reads files.
    Raises UsageError.
    """
    name = option.removeprefix("--").replace("-", "_")
    files = {each: given[f"{name}_{each}"] for each in ("ca", "cert", "key")}
    if not given[name] and all(each is None for each in files.values()):
        return None
    return client_context(**files, option=option)
