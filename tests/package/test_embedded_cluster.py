"""The nodes of a cluster of our own, before any of them is started."""

from __future__ import annotations

import json
from pathlib import Path

from pyoco_server.config import NatsBackendConfig
from pyoco_server.embedded.cluster import cluster_of, cluster_url, nodes_found


def test_each_node_knows_all_of_them_and_has_its_own_store(tmp_path: Path) -> None:
    """GRID-188: synced as the settings say"""
    nodes = cluster_of(tmp_path, NatsBackendConfig(nats_sync="always"), 3)
    written = [json.loads("{" + node.prepare().read_text().partition("\n")[2] + "}") for node in nodes.values()]
    assert [each["server_name"] for each in written] == list(nodes) == ["nats-1", "nats-2", "nats-3"]
    assert {each["cluster"]["name"] for each in written} == {"pyoco"}
    ports = [each["cluster"]["port"] for each in written]
    assert all(each["cluster"]["routes"] == [f"nats://127.0.0.1:{port}" for port in ports] for each in written)
    assert len({each["jetstream"]["store_dir"] for each in written}) == 3
    assert {each["jetstream"]["sync_interval"] for each in written} == {"always"}
    assert len({*ports, *(each["port"] for each in written), *(each["http"] for each in written)}) == 9
    assert cluster_url(nodes.values()) == ",".join(f"nats://127.0.0.1:{each['port']}" for each in written)


def test_a_folder_says_how_many_nodes_have_stored_something_there(tmp_path: Path) -> None:
    assert nodes_found(tmp_path) == 0
    for node in cluster_of(tmp_path, NatsBackendConfig(), 5).values():
        node.prepare()
    assert nodes_found(tmp_path) == 0
    for number in (1, 2, 3):
        (tmp_path / f"nats-{number}" / "store").mkdir()
    assert nodes_found(tmp_path) == 3
