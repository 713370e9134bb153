"""How this process logs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from pyoco_server.config.environment import with_dotenv
from pyoco_server.config.settings import (
    FLAG,
    Audience,
    check_all,
    choice,
    declare,
    settings,
)
from pyoco_server.errors import SettingError

__all__ = ["LogSettings"]


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """The log settings. `from_env` never stops the program: it uses defaults and records the problems (FLOW-530)."""

    log_level: str = declare(
        "INFO", choice("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"), "GWK", "Minimum level that is logged."
    )
    log_format: Literal["auto", "json", "text"] = declare(
        "auto",
        choice("auto", "json", "text"),
        "GWK",
        "`json`: one object per line. `text`: the same for people, with tracebacks."
        " `auto`: short lines on a terminal, `json` elsewhere.",
    )
    log_utc: bool = declare(True, FLAG, "GWK", "Log times in UTC, not in local time.", audience=Audience.EXISTING)
    log_include_traceback: bool = declare(True, FLAG, "GWK", "Include tracebacks in logs.", audience=Audience.EXISTING)
    #: Problems found in the environment; `configure_logging` reports them as ERR-PYOCO-0013.
    problems: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        check_all(self)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read the environment after the dotenv file. Never raises; a bad value yields its default and a problem."""
        problems: list[str] = []
        values: dict[str, Any] = {}
        try:
            variables = with_dotenv(environ)
        except SettingError as error:
            problems.append(str(error))
            variables = os.environ if environ is None else environ
        for setting in settings(cls):
            try:
                if setting.variable in variables:
                    values[setting.name] = setting.read(variables[setting.variable])
            except SettingError as error:
                problems.append(str(error))
        return cls(**values, problems=tuple(problems))
