"""Build the executors of packs from settings. This happens only in the processes that execute packs.

Code that starts such processes can check beforehand whether the files that the settings name are valid. A process
imports only what its own packs need: one that answers decisions does not load OCR.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from pyoco_server.config.packs import PackConfig
from pyoco_server.core.packs.ability import ABLE, Ability
from pyoco_server.errors import SettingError
from pyoco_server.executors.packs.port import Execute

if TYPE_CHECKING:
    from pyoco_server.config import PricedConfig
    from pyoco_server.ports.ocr.port import Engine

__all__ = ["LOADER", "check_files", "executors", "file_problems", "ocr_languages", "pack_abilities"]

#: The function that a pack process calls.
LOADER: Final = "pyoco_server.wiring.packs:executors"
#: Time limit for an OCR engine to list its languages, where a caller is waiting.
_ASK_SECONDS: Final = 5.0


def executors(packs: Mapping[str, str], config: PackConfig) -> dict[str, Execute]:
    """Return the executors of these packs, by name.

    `packs` gives the location of each as `module:attribute`; empty for a built-in pack. Raises any error of the import,
    and TypeError if the attribute is not callable.
    """
    return {name: _imported(place) if place else _BUILT_IN[name](config) for name, place in packs.items()}


def _imported(place: str) -> Execute:
    module, _, attribute = place.partition(":")
    found: object = importlib.import_module(module)
    for name in attribute.split("."):
        found = getattr(found, name)
    if not callable(found):
        raise TypeError(f"{place} cannot be called")
    execute: Execute = found
    return execute


def check_files(priced: PricedConfig) -> None:
    """Check the files that the settings of packs name, if packs are enabled. Blocks.

    Raises SettingError before anything is started, like any other bad setting.
    """
    for problem in file_problems(priced) if priced.priced_enabled else ():
        raise problem


def file_problems(priced: PricedConfig) -> Iterator[SettingError]:
    """Yield the problems of those files. Files of packs that the settings leave out are not read."""
    for name, check in _FILES.items():
        if not priced.packs or name in priced.packs:
            try:
                check(priced.pack)
            except SettingError as error:
                yield error


def ocr_languages(engine: str) -> tuple[str, ...]:
    """Return the languages that this engine can read here. Blocks on a call of the engine. Raises EngineFailed."""
    if engine == "tesseract":
        from pyoco_server.ports.ocr.tesseract import Tesseract

        return Tesseract(ask_seconds=_ASK_SECONDS).languages
    from pyoco_server.ports.ocr.rapidocr import RapidOcr

    return RapidOcr().languages


def pack_abilities(packs: Collection[str], config: PackConfig) -> dict[str, Ability]:
    """Check what these packs need on this machine, now (SAFE-3). Blocks, for a few seconds at most."""
    return {name: _ABILITIES[name](config) for name in packs if name in _ABILITIES}


# ---- Built-in packs: one function each, which imports what the pack needs. ----


def _decision(config: PackConfig) -> Execute:
    from pyoco_server.executors.packs import decision  # in the processes of this pack alone

    if not config.decision_url:
        return decision.executor()
    from pyoco_server.ports.answerer.openai import OpenAiAnswerer

    return decision.executor(OpenAiAnswerer(config.decision_url, config.decision_model, config.decision_api_key))


def _compliance(config: PackConfig) -> Execute:
    from pyoco_server.executors.packs import compliance  # in the processes of this pack alone

    return compliance.executor(config)


def _eval(config: PackConfig) -> Execute:
    from pyoco_server.executors.packs import evaluation  # in the processes of this pack alone

    return evaluation.executor(config)


def _url(config: PackConfig) -> Execute:
    from pyoco_server.executors.packs import url  # in the processes of this pack alone
    from pyoco_server.ports.web.pinned import PinnedWeb

    return url.executor(config, PinnedWeb(config.url_pack_ca_file))


def _ocr(config: PackConfig) -> Execute:
    from pyoco_server.executors.packs import ocr  # in the processes of this pack alone
    from pyoco_server.ports.ocr.pages import PillowImages

    return ocr.executor(config, PillowImages(), lambda: _ocr_engine(config.ocr_engine))


def _ocr_engine(asked: str) -> Engine | str:
    """Return the OCR engine, or a text that explains why there is none. Raises EngineFailed."""
    from pyoco_server.core.ocr.engines import NO_ENGINE
    from pyoco_server.ports.ocr.present import engine_here

    match engine_here(asked):
        case "tesseract":
            from pyoco_server.ports.ocr.tesseract import Tesseract

            return Tesseract()
        case "rapidocr":
            from pyoco_server.ports.ocr.rapidocr import RapidOcr

            return RapidOcr()
        case _:
            return NO_ENGINE[asked]


def _url_files(config: PackConfig) -> None:
    if config.url_pack_ca_file:
        from pyoco_server.ports.web.trust import check_ca_file  # not without such a file

        check_ca_file(config.url_pack_ca_file)


def _ocr_files(config: PackConfig) -> None:
    if config.ocr_profiles_file:
        from pyoco_server.executors.packs.ocr_profiles import read_profiles  # not without such a file

        read_profiles(config.ocr_profiles_file)


def _ocr_ability(config: PackConfig) -> Ability:
    from pyoco_server.core.ocr.engines import NO_ENGINE
    from pyoco_server.ports.ocr.port import EngineFailed
    from pyoco_server.ports.ocr.present import engine_here

    engine = engine_here(config.ocr_engine)
    if engine is None:
        return Ability(missing=NO_ENGINE[config.ocr_engine])
    try:
        languages = ocr_languages(engine)
    except EngineFailed as error:
        return Ability(missing=str(error))
    return Ability(provides=languages) if languages else Ability(missing=f"{engine} has no language data")


def _decision_ability(config: PackConfig) -> Ability:
    if not config.decision_url:
        return ABLE
    from pyoco_server.ports.answerer.reach import why_not_reached  # not without a model

    why = why_not_reached(config.decision_url)
    return ABLE if why is None else Ability(missing=f"the model at PYOCO_DECISION_URL cannot be reached: {why}")


#: Checks of packs that need more than the package.
_ABILITIES: Final[dict[str, Callable[[PackConfig], Ability]]] = {"decision": _decision_ability, "ocr": _ocr_ability}

#: Checks of packs that read files named by the settings.
_FILES: Final[dict[str, Callable[[PackConfig], None]]] = {"url": _url_files, "ocr": _ocr_files}

#: Built-in packs by name. A test compares them with `core.packs.PACKS`.
_BUILT_IN: Final[dict[str, Callable[[PackConfig], Execute]]] = {
    "compliance": _compliance,
    "decision": _decision,
    "ocr": _ocr,
    "eval": _eval,
    "url": _url,
}
