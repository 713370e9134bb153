"""The API for authors of packs: specs, context and results.

A pack is a `PackSpec`, named by an entry point of the group `pyoco_server.packs`, and a function, its executor.
Importing this module is cheap: gateways import specs to check inputs.
"""

from __future__ import annotations

from pyoco_server.core.packs.prices import Prices
from pyoco_server.core.packs.spec import Check, Here, Member, Members, PackSpec, choice, flag, is_pack_name, text, whole
from pyoco_server.core.priced.envelope import Artifact, PackResult
from pyoco_server.errors import Problem
from pyoco_server.executors.packs.port import Context, PackError, PackUnavailable

__all__ = [
    "Artifact",
    "Check",
    "Context",
    "Here",
    "Member",
    "Members",
    "PackError",
    "PackResult",
    "PackSpec",
    "PackUnavailable",
    "Prices",
    "Problem",
    "choice",
    "flag",
    "is_pack_name",
    "text",
    "whole",
]
