"""Operator setup before the first start: NATS permissions, and streams and buckets that other roles may not create."""

from __future__ import annotations

from collections.abc import Sequence

from pyoco_server.config import GridConfig, NatsBackendConfig, PricedConfig
from pyoco_server.ports.nats.access import access_of
from pyoco_server.ports.nats.ensuring import ensure, keep_as_long, refuse_rollups
from pyoco_server.ports.nats.grid_resources import ensure_grid, ensure_product, grid_resources
from pyoco_server.ports.nats.link import open_link
from pyoco_server.ports.nats.permissions import ROLES, Rights, Role, inbox_prefix, rights_of
from pyoco_server.ports.nats.resources import priced_resources, resources_of

__all__ = ["ROLES", "Rights", "Role", "inbox_prefix", "nats_rights", "prepare"]


def nats_rights(
    config: NatsBackendConfig, priced: PricedConfig, grid: GridConfig, roles: Sequence[Role]
) -> dict[Role, Rights]:
    return {role: rights_of(role, config, priced, grid) for role in roles}


async def prepare(config: NatsBackendConfig, priced: PricedConfig, grid: GridConfig) -> list[str]:
    """Create every missing stream and bucket, including those of priced runs and programs, and return all names.

    Also sets the retention of the priced stores to the current settings, and makes buckets of earlier versions refuse
    rollups. Otherwise existing resources are not changed. Raises Unavailable, DeploymentRefused, SettingError.
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
