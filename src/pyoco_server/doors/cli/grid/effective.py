"""Logs the effective settings of a grid process (GRID-193)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyoco_server.config.settings import settings, written
from pyoco_server.logs import get_logger, redact_url

if TYPE_CHECKING:
    from pyoco_server.config import GridConfig, NatsBackendConfig

__all__ = ["log_settings"]

log = get_logger(__name__)


def log_settings(config: NatsBackendConfig | None, grid: GridConfig) -> None:
    """Log the settings without secrets; not even their length is logged. URLs are logged without their password."""
    log.info("effective program settings", settings=_shown(grid))
    if config is not None:
        log.info("effective settings", nats_url=redact_url(config.nats_url), settings=_shown(config))


def _shown(config: NatsBackendConfig | GridConfig) -> dict[str, str]:
    declared = (each for each in settings(type(config)) if each.has_variable and not each.secret)
    return {each.variable: written(getattr(config, each.name)) for each in declared}
