"""The available packs and their inputs. A new pack needs a module here, an entry below, and an executor."""

from __future__ import annotations

from typing import Final

from pyoco_server.core.packs.compliance import COMPLIANCE
from pyoco_server.core.packs.decision import DECISION
from pyoco_server.core.packs.evaluation import EVAL
from pyoco_server.core.packs.ocr import OCR
from pyoco_server.core.packs.spec import PackSpec
from pyoco_server.core.packs.url import URL

__all__ = ["PACKS", "PackSpec"]

#: By name: the `pack_type` of a submission.
PACKS: Final[dict[str, PackSpec]] = {spec.name: spec for spec in (DECISION, COMPLIANCE, EVAL, OCR, URL)}
