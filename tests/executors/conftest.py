"""A JetStream in memory for tests of programs and packs."""

from __future__ import annotations

from support.memory_nats import nats_url, real_nats
from support.warm_hosts import warm_hosts_of_module

__all__ = ["nats_url", "real_nats", "warm_hosts_of_module"]
