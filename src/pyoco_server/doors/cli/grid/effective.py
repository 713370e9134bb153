"""The settings of a process of the grid, as they are in force (GRID-193)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyoco_server.config.settings import settings, written
from pyoco_server.logs import get_logger, redact_url

if TYPE_CHECKING:
    from pyoco_server.config import GridConfig, NatsBackendConfig

__all__ = ["log_settings"]

log = get_logger(__name__)


def log_settings(config: NatsBackendConfig | None, grid: GridConfig) -> None:
    """Without secrets: what is one is not even named by its length. Of addresses, all but the password is shown."""
    log.info("settings of programs in force", settings=_shown(grid))
    if config is not None:
        log.info("settings in force", nats_url=redact_url(config.nats_url), settings=_shown(config))


def _shown(config: NatsBackendConfig | GridConfig) -> dict[str, str]:
    declared = (each for each in settings(type(config)) if each.has_variable and not each.secret)
    return {each.variable: written(getattr(config, each.name)) for each in declared}
