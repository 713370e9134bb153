"""Which processes `pyoco-server cluster demo` runs: those of `up`, some of them more than once."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence

from pyoco_server.config import NatsBackendConfig
from pyoco_server.doors.cli.claims import DataDir
from pyoco_server.doors.cli.cluster_settings import own_settings
from pyoco_server.doors.cli.plan import ProcessPlan, UpOptions
from pyoco_server.doors.cli.serving import Serving
from pyoco_server.embedded import EmbeddedNats
from pyoco_server.embedded.cluster import cluster_url
from pyoco_server.executors.flow.samples import RESOLVER
from pyoco_server.loops.supervisor import Part

__all__ = ["REPLICAS", "ClusterPlan"]

#: Replicas of everything: the loss of any one node is survived.
REPLICAS = 3


class ClusterPlan(ProcessPlan):
    """The processes of the demo. Create and use it within `set_aside`, because a plan reads environment variables."""

    def __init__(self, config: NatsBackendConfig, workers: int, flow_resolver: str | None) -> None:
        options = UpOptions(
            host="127.0.0.1",
            port=0,
            data_dir=None,
            nats_url=None,
            nats_listen_host=None,
            nats_client_port=None,
            nats_http_port=None,
            with_nats_bootstrap=False,
            workers=workers,
            keeper=True,
            with_examples=False,
            flow_resolver=flow_resolver or RESOLVER,
            slots=None,
            tags=None,
            wheel_sync=False,
            dashboard_lang=None,
        )
        super().__init__(options, config)
        self._has_sample_flow = flow_resolver is None
        self._has_own_nats = True  # even if PYOCO_NATS_URL is set

    def cluster_parts(
        self,
        data_dir: DataDir,
        nodes: Mapping[str, EmbeddedNats],
        gateways: Sequence[tuple[socket.socket, Serving]],
    ) -> list[Part]:
        """Return the parts in the order in which they are started."""

        def environment() -> dict[str, str]:
            return {
                "WORKER_CPU_WAIT_SEC": "1",  # many processes share one machine, and a user is watching
                **own_settings(os.environ)[0],
                "PYOCO_NATS_URL": cluster_url(nodes.values()),
                "PYOCO_DATA_DIR": str(data_dir.path),
                "PYOCO_JETSTREAM_REPLICAS": str(REPLICAS),
                "EXEC_REPLICAS": "0",  # as PYOCO_JETSTREAM_REPLICAS
            }

        # Files that flows write to their working directory are kept in the data directory.
        folder = data_dir.path if self._has_sample_flow else None
        return [
            *(self._nats_part(node, data_dir, name) for name, node in nodes.items()),
            *(
                self._gateway_part(f"gateway-{number}", http, serving.until_ready, environment)
                for number, (http, serving) in enumerate(gateways, 1)
            ),
            self._keeper_part(environment),
            *self._worker_parts(environment, data_dir.path, folder),
        ]
