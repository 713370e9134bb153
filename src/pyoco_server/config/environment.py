"""The environment merged with the dotenv file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyoco_server.config.dotenv import read_dotenv
from pyoco_server.config.settings import (
    FLAG,
    PATH,
    declare,
    settings,
    written,
)

__all__ = ["DotenvSettings", "with_dotenv"]


@dataclass(frozen=True, kw_only=True)
class DotenvSettings:
    """The settings of the dotenv file."""

    load_dotenv: bool = declare(True, FLAG, "GWKA", "Read a dotenv file first.")
    env_file: str = declare(".env", PATH, "GWKA", "Path of that file. It may be missing.")


def with_dotenv(environ: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return the environment merged over the dotenv file (FLOW-511, FLOW-512, FLOW-519)."""
    variables = os.environ if environ is None else environ
    load, path = (s.read(variables.get(s.variable, written(s.default))) for s in settings(DotenvSettings))
    if not load:
        return variables
    read = read_dotenv(Path(str(path)))
    for setting in settings(DotenvSettings):  # a dotenv file cannot refer to another one
        read.pop(setting.variable, None)
    if environ is not None:
        return {**read, **environ}
    for name, value in read.items():
        os.environ.setdefault(name, value)
    return os.environ
