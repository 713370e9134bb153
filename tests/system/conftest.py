"""What tests of whole systems share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.clusters import DemoCluster, shared_cluster


@pytest.fixture(scope="session")
def demo_cluster() -> Iterator[DemoCluster]:
    """One per test process, started when it is first asked for. Who takes a part of it away brings it back."""
    with shared_cluster() as cluster:
        yield cluster
