"""A JetStream in memory for tests of the package's own modules."""

from __future__ import annotations

from support.memory_nats import module_nats_url, nats_url, real_nats

__all__ = ["module_nats_url", "nats_url", "real_nats"]
