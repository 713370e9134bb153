"""The packs that a gateway offers and a worker executes, built from settings."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from pyoco_server.config import NatsBackendConfig, PricedConfig
from pyoco_server.config.settings import written
from pyoco_server.core.diagnosis.facts import Packs, Unknown
from pyoco_server.core.packs import PACKS, PackSpec
from pyoco_server.core.packs.ability import Ability
from pyoco_server.errors import SettingError
from pyoco_server.executors.capture.port import Collector
from pyoco_server.executors.host.limits import memory_bytes
from pyoco_server.executors.packs.plugins import installed_packs, known_names
from pyoco_server.executors.packs.pool import PackHosts
from pyoco_server.logs import get_logger
from pyoco_server.loops.priced.fetching import Files
from pyoco_server.loops.priced.pack_lane import PackLane
from pyoco_server.ports.inputs.scratch import Scratch
from pyoco_server.ports.ocr.port import EngineFailed
from pyoco_server.ports.ocr.present import engine_here
from pyoco_server.ports.priced import Priced
from pyoco_server.wiring.packs import LOADER, file_problems, ocr_languages, pack_abilities

__all__ = ["known_packs", "offered_packs", "pack_lane", "packs_here"]

log = get_logger(__name__)


def offered_packs(priced: PricedConfig) -> Mapping[str, PackSpec]:
    """Return the installed packs that the settings name; by default all.

    Packs that cannot be offered are logged. Imports third-party specs, which blocks. Raises SettingError for a name
    that is not installed.
    """
    known = known_names()
    if unknown := [name for name in priced.packs if name not in known]:
        raise SettingError(
            f"PYOCO_PACKS={written(priced.packs)!r} has {', '.join(unknown)}, which is not installed here; "
            f"there are: {', '.join(known)}"
        )
    installed = installed_packs(priced.packs)
    for each in installed.left_out:
        log.error("pack cannot be offered; skipped", pack=each.name, package=each.package, why=each.why)
    return installed.packs


def known_packs(priced: PricedConfig) -> Mapping[str, PackSpec]:
    """Return the packs whose inputs and prices a keeper can check: the built-in ones, and what is installed here.

    A keeper offers none, so none has to be there: what it cannot check of a tick, the worker checks. Imports
    third-party specs, which blocks.
    """
    return {**PACKS, **installed_packs(priced.packs).packs}


def packs_here(priced: PricedConfig) -> Packs:
    """Report the packs of this machine to the doctor. Imports and blocks like `offered_packs`, but raises nothing."""
    known, installed, engine = known_names(), installed_packs(priced.packs), engine_here(priced.pack.ocr_engine)
    return Packs(
        offered=tuple(installed.packs),
        known=known,
        strangers=tuple(name for name in priced.packs if name not in known),
        left_out=tuple((each.name, each.package, each.why) for each in installed.left_out),
        bad_files=tuple(map(str, file_problems(priced))),
        ocr_engine=engine,
        ocr_languages=_languages(engine) if engine is not None and "ocr" in installed.packs else (),
        test_allow=priced.pack.url_pack_test_allow,
    )


def _languages(engine: str) -> tuple[str, ...] | Unknown:
    try:
        return ocr_languages(engine)
    except EngineFailed as error:
        return Unknown(str(error))


async def pack_lane(priced: Priced, config: NatsBackendConfig, collector: Collector | None = None) -> PackLane:
    """Build the lane of priced runs of a worker. `collector` gets what packs print. Raises SettingError."""
    slots, settings = priced.config.pack_slots or config.slots, priced.config
    known = replace(priced, packs=await asyncio.to_thread(offered_packs, settings))
    if settings.pack.url_pack_test_allow and "url" in known.packs:
        log.warning(
            "PYOCO_URL_PACK_TEST_ALLOW is for tests only: the url pack may fetch from there, whatever its rules",
            url_pack_test_allow=settings.pack.url_pack_test_allow,
        )
    memory = config.host_memory_max_bytes or memory_bytes() * 8 // 10
    hosts = PackHosts(slots, memory, known.packs.values(), settings.pack, LOADER, collector)
    files = Files(Scratch(Path(config.data_dir) / "tmp" / "pack-files"))

    def probe(packs: Collection[str]) -> Mapping[str, Ability]:
        lost = {name: Ability(missing=why) for name, why in hosts.left_out.items()}
        return lost | pack_abilities(packs, settings.pack)

    worker = PackLane(known, hosts, slots, files=files)
    worker.probe = probe
    return worker
