"""What tests of workers share."""

from __future__ import annotations

from support.memory_nats import memory_nats_server, nats_url, real_nats
from support.virtual_tests import pytest_asyncio_loop_factories
from support.warm_hosts import cold_hosts, warm_hosts

__all__ = ["cold_hosts", "memory_nats_server", "nats_url", "pytest_asyncio_loop_factories", "real_nats", "warm_hosts"]
