"""The settings of each OCR profile: a table that an operator can replace (PRICED-148). Strict: a typo is an error."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyoco_server.core.packs.ocr import PROFILES

__all__ = ["LAYOUTS", "MODES", "PASSES", "STEPS", "BadProfiles", "OcrProfile", "parse_profiles"]

#: The layouts that the preflight distinguishes, besides a blank page.
LAYOUTS: Final = ("line", "block", "columns", "scattered")
MODES: Final = ("line", "block", "columns", "automatic", "sparse")
#: In the order in which they are applied.
STEPS: Final = ("invert", "flatten", "contrast", "denoise", "enlarge")
PASSES: Final = ("title", "body", "fine_print")
_WHENS: Final = ("never", "when_needed", "always")
_VERSION: Final = 1


class BadProfiles(ValueError):
    """An invalid profile file. The text names the place, and the allowed values."""


@dataclass(frozen=True, kw_only=True)
class OcrProfile:
    name: str
    #: The segmentation mode for each layout.
    modes: Mapping[str, str]
    #: When each preprocessing step is applied.
    preprocessing: Mapping[str, str]
    passes: tuple[str, ...]
    #: 0 to 1.
    doubtful_below: float
    unreadable_below: float


def parse_profiles(document: object) -> dict[str, OcrProfile]:
    """Return all profiles of a document by name. Raises BadProfiles."""
    top = _mapping(document, "the file", ("version", "profiles"))
    if type(top["version"]) is not int or top["version"] != _VERSION:
        raise BadProfiles(f"version must be {_VERSION}")
    profiles = _mapping(top["profiles"], "profiles", PROFILES)
    return {name: _profile(name, profiles[name]) for name in PROFILES}


def _profile(name: str, value: object) -> OcrProfile:
    members = ("modes", "preprocessing", "passes", "doubtful_below", "unreadable_below")
    given = _mapping(value, name, members)
    modes = _mapping(given["modes"], f"{name}.modes", LAYOUTS)
    steps = _mapping(given["preprocessing"], f"{name}.preprocessing", STEPS)
    for layout, mode in modes.items():
        _one_of(mode, f"{name}.modes.{layout}", MODES)
    for step, when in steps.items():
        # `enlarge` cannot be "always": the target size follows from the height of the letters found.
        _one_of(when, f"{name}.preprocessing.{step}", _WHENS[:2] if step == "enlarge" else _WHENS)
    doubtful, unreadable = (_share(given[member], f"{name}.{member}") for member in members[3:])
    if unreadable > doubtful:
        raise BadProfiles(f"{name}.unreadable_below must not be above {name}.doubtful_below")
    return OcrProfile(
        name=name,
        modes=dict(modes),
        preprocessing=dict(steps),
        passes=_passes(given["passes"], f"{name}.passes"),
        doubtful_below=doubtful,
        unreadable_below=unreadable,
    )


def _passes(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise BadProfiles(f"{where} must be a list")
    for index, item in enumerate(value):
        _one_of(item, f"{where}[{index}]", PASSES)
    if value != [name for name in PASSES if name in value]:
        raise BadProfiles(f"{where} must be in the order {', '.join(PASSES)}, each once at most")
    if "body" not in value:
        raise BadProfiles(f"{where} must have body: without it most of a page would not be read")
    return tuple(value)


def _mapping(value: object, where: str, members: Collection[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadProfiles(f"{where} must be a mapping with {', '.join(members)}")
    for name in value:
        if name not in members:
            raise BadProfiles(f"{where} has {str(name)[:40]!r}, and may have {', '.join(members)}")
    for name in members:
        if name not in value:
            raise BadProfiles(f"{where} lacks {name}")
    return value


def _one_of(value: object, where: str, words: Collection[str]) -> None:
    if not isinstance(value, str) or value not in words:
        raise BadProfiles(f"{where} must be one of {', '.join(words)}")


def _share(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise BadProfiles(f"{where} must be a number from 0 to 1")
    return float(value)
