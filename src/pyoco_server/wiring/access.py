"""What an operator does before anybody else may come: rights, and the streams and buckets that others may not make."""

from __future__ import annotations

from collections.abc import Sequence

from pyoco_server.config import GridConfig, NatsBackendConfig, PricedConfig
from pyoco_server.ports.nats.access import access_of
from pyoco_server.ports.nats.grid_resources import ensure_grid, ensure_product, grid_resources
from pyoco_server.ports.nats.link import open_link
from pyoco_server.ports.nats.permissions import ROLES, Rights, Role, inbox_prefix, rights_of
from pyoco_server.ports.nats.resources import ensure, keep_as_long, priced_resources, refuse_rollups, resources_of

__all__ = ["ROLES", "Rights", "Role", "inbox_prefix", "nats_rights", "prepare"]


def nats_rights(
    config: NatsBackendConfig, priced: PricedConfig, grid: GridConfig, roles: Sequence[Role]
) -> dict[Role, Rights]:
    return {role: rights_of(role, config, priced, grid) for role in roles}


async def prepare(config: NatsBackendConfig, priced: PricedConfig, grid: GridConfig) -> list[str]:
    """Make every stream and bucket that is missing, those of priced runs and programs included, have stores keep
    their objects for as long as the settings say now, and buckets of earlier versions refuse rollups. What is there is
    else left as it is. Returns all their names.

    Raises Unavailable, DeploymentRefused, SettingError.
    """
    of_priced_runs = priced_resources(config, priced) if priced.priced_enabled else ()
    every = (*resources_of(config), *grid_resources(config, grid), *of_priced_runs)
    link = await open_link(access_of(config), "pyoco-admin")
    try:
        await ensure_product(link, config, grid)
        await ensure_grid(link, config, grid)
        await keep_as_long(link, [each for each in of_priced_runs if each.config.get("max_age")])
        await ensure(link, of_priced_runs)
        await refuse_rollups(link, every)
    finally:
        await link.close()
    return [each.name for each in every]
