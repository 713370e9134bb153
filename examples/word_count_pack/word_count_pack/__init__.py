"""What the pack `word_count` may be asked. Gateways import this, so nothing heavy is in here."""

from __future__ import annotations

from pyoco_server.packs import Member, Members, PackSpec, text, whole

__all__ = ["PACK", "TEXT_LENGTH_MAX", "TOP_MAX"]

TEXT_LENGTH_MAX = 100_000
TOP_MAX = 50

PACK = PackSpec(
    name="word_count",
    executor="word_count_pack.executor:execute",
    inputs=Members(
        {
            "text": Member(text(1, TEXT_LENGTH_MAX), is_required=True),
            "top": Member(whole(1, TOP_MAX)),
        }
    ),
)
