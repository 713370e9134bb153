"""Settings without a variable of their own, such as timers, for the processes that a test starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyoco_server.config.settings import TEST_SETTINGS, settings, written

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["timers", "variables_of", "with_timers"]


def variables_of(config: DataclassInstance) -> dict[str, str]:
    """The variables of the settings that differ from their defaults."""
    changed = [each for each in settings(type(config)) if getattr(config, each.name) != each.default]
    values = {each: written(getattr(config, each.name)) for each in changed}
    hidden = [f"{each.name}={value}" for each, value in values.items() if not each.has_variable]
    shown = {each.variable: value for each, value in values.items() if each.has_variable}
    return {**shown, **({TEST_SETTINGS: ",".join(hidden)} if hidden else {})}


def timers(**values: float) -> dict[str, str]:
    """The variable that sets these fields of the settings."""
    return {TEST_SETTINGS: ",".join(f"{name}={value:g}" for name, value in values.items())}


def with_timers(*environments: Mapping[str, str]) -> dict[str, str]:
    """All of these variables; the timers of one do not replace those of another."""
    merged: dict[str, str] = {}
    for each in environments:
        both = [side[TEST_SETTINGS] for side in (merged, each) if side.get(TEST_SETTINGS)]
        merged |= each
        if both:
            merged[TEST_SETTINGS] = ",".join(both)
    return merged
