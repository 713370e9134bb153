"""A JetStream in memory for tests of programs and packs."""

from __future__ import annotations

from support.memory_nats import nats_url, real_nats

__all__ = ["nats_url", "real_nats"]
