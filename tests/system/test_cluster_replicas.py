"""The number of copies is changed in place, while clients use the cluster."""

from __future__ import annotations

import io
import json
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.config import GridConfig, NatsBackendConfig
from pyoco_server.doors.cli.admin import cli
from pyoco_server.doors.cli.shell import outcome
from pyoco_server.ports.nats.grid_resources import all_resources, ensure_grid, ensure_product
from pyoco_server.ports.nats.link import open_link
from support.clusters import DemoCluster, loaded
from support.proofs.nodes import Nodes
from support.servers import quick_folder

_STREAMS = {each.name for each in all_resources(NatsBackendConfig(), None, GridConfig())}


async def replicas(cluster: DemoCluster, *words: str) -> dict[str, Any]:
    code, said = await cluster.admin("replicas", *words, "--json")
    assert code == 0, said
    found: dict[str, Any] = json.loads(said)
    return found


@pytest.mark.timeout(600)  # a busy machine needs minutes for it
async def test_copies_are_changed_in_place_and_no_request_fails(demo_cluster: DemoCluster, tmp_path: Path) -> None:
    """GRID-180, GRID-186, FLOW-285: three to one, back to three, with a kill -9 of the command in the middle; then the
    node that leads the queue dies, and runs go on."""
    async with loaded(demo_cluster, tmp_path / "note") as load:
        lowered = await replicas(demo_cluster, "1", "--yes")
        assert {each["stream"] for each in lowered["changed"]} == _STREAMS
        assert {len(each["nodes"]) for each in lowered["changed"]} == {1}
        await _begin_and_kill(demo_cluster)
        raised = await replicas(demo_cluster, "3")
        assert 0 < len(raised["changed"]) < len(_STREAMS)  # the rest was done before, and is not done again
        assert {len(each["nodes"]) for each in raised["changed"]} == {3}
        again = await replicas(demo_cluster, "3")
        # A copy that is a moment behind is waited for, and told of; none is made.
        assert (again["missing"], [each for each in again["changed"] if each["before"] != 3]) == ([], [])
        assert {each["name"] for each in again["streams"]} == _STREAMS
        leader = next(each["nodes"][0] for each in again["streams"] if each["name"] == "PYOCO_WORK")
        await demo_cluster.restarted(leader, signal.SIGKILL)
        await load.more(4)
    await load.check(demo_cluster.addresses, may_begin_again=True)


async def _begin_and_kill(cluster: DemoCluster) -> None:
    """kill -9 as soon as the first stream is done."""
    process = await cluster.start_admin("replicas", "3")
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    assert re.match(r"\w+: 1 -> 3 in [\d.]+ s, on nats-\d, nats-\d, nats-\d\n", line), line
    process.kill()
    await process.communicate()


@pytest.fixture
async def three_nodes() -> AsyncIterator[Nodes]:
    """NATS with three copies of everything, and nobody else."""
    with quick_folder() as folder:
        nodes = Nodes(folder, 3)
        try:
            await nodes.start()
            config, grid = NatsBackendConfig(), GridConfig(exec_replicas=3, exec_queue_max_bytes=64 * 2**20)
            link = await open_link(nodes.url, "tests")
            await ensure_product(link, config, grid)
            await ensure_grid(link, config, grid)
            await link.close()
            yield nodes
        finally:
            nodes.kill()


def test_what_cannot_be_kept_is_refused_and_nothing_is_changed(
    three_nodes: Nodes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-6: too few nodes; nobody to ask; a setting that would undo it; what survives nothing"""

    def asked(*words: str) -> tuple[int, str]:
        code = outcome(cli, "pyoco-server-admin", ["--nats-url", three_nodes.url, "replicas", *words])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    def refused(*words: str) -> str:
        code, said = asked(*words)
        assert code in {1, 3}, said
        return said

    assert "5 copies need 5 JetStream nodes that answer" in refused("5")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert "--yes" in refused("1")
    assert "no majority" in refused("2")
    monkeypatch.setenv("EXEC_REPLICAS", "3")
    assert "EXEC_REPLICAS=3" in refused("1", "--yes")
    code, said = asked("3", "--dry-run")
    assert code == 0, said
    assert {line.partition(":")[0] for line in said.splitlines()} == _STREAMS
    assert all(": 3, stays; on n" in line for line in said.splitlines())


def test_copies_are_lowered_and_raised_again(three_nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    """GRID-180, GRID-186, FLOW-285: each stream of the product, and none a second time"""

    def changed(*words: str) -> dict[str, int]:
        code = outcome(cli, "pyoco-server-admin", ["--nats-url", three_nodes.url, "replicas", *words, "--json"])
        shown = capsys.readouterr()
        assert code == 0, shown.err
        return {each["stream"]: len(each["nodes"]) for each in json.loads(shown.out)["changed"] if _is_moved(each)}

    assert changed("1", "--yes") == dict.fromkeys(_STREAMS, 1)
    assert changed("3") == dict.fromkeys(_STREAMS, 3)
    assert changed("3") == {}


def _is_moved(change: dict[str, Any]) -> bool:
    """Not one whose copy was only waited for."""
    return bool(change["before"] != len(change["nodes"]))
