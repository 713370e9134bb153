"""The gateway as an ASGI factory: `uvicorn pyoco_server.http_api:create_app --factory` (section 18.2)."""

from __future__ import annotations

from pyoco_server.config import GridConfig, NatsBackendConfig
from pyoco_server.doors.http.app import Gateway, build_app
from pyoco_server.wiring import backend as wiring

__all__ = ["create_app"]


def create_app(config: NatsBackendConfig | None = None, grid: GridConfig | None = None) -> Gateway:
    """Build the ASGI application with every route. Both configs default to the environment.

    The application connects to NATS when it starts; this raises Unavailable (ERR-PYOCO-0003) if NATS is unavailable.
    """
    settings = config or NatsBackendConfig.from_env()
    return build_app(lambda: wiring.open_gateway_backend(settings, grid=grid), settings.http_api_key_header)
