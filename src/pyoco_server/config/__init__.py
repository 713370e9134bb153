"""Every setting, declared once: its default, its bounds, its users and its meaning.

The order of precedence is option, environment, dotenv file, default (FLOW-518). A value that does not parse stops the
process with an error that names the variable: a silent default would hide a typo.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from pyoco_server.config.backend import NatsBackendConfig
from pyoco_server.config.dotenv import read_dotenv
from pyoco_server.config.environment import DotenvSettings, with_dotenv
from pyoco_server.config.grid import GridConfig
from pyoco_server.config.logs import LogSettings
from pyoco_server.config.packs import PackConfig
from pyoco_server.config.priced import AwsSettings, PricedConfig
from pyoco_server.config.reference import reference_page
from pyoco_server.config.removed import REMOVED
from pyoco_server.config.settings import TEST_SETTINGS, Audience, Elsewhere, Setting, settings

__all__ = [
    "AwsSettings",
    "GridConfig",
    "LogSettings",
    "NatsBackendConfig",
    "PricedConfig",
    "Setting",
    "grid_from_env",
    "priced_from_env",
    "read_dotenv",
    "reference",
    "secret_variables",
    "settings",
    "unknown_variables",
    "unused_variables",
    "variables_for_tests",
]

#: Variables read by other parts; listed here for typo detection and for the reference.
_ELSEWHERE: dict[str, Elsewhere] = {
    "PYOCO_SERVER_URL": ("C", "Address of the gateway."),
    "PYOCO_API_KEY": ("C", "API key the client sends."),
    "PYOCO_PROFILE": ("C", "Profile of the client's config file to use."),
    "PYOCO_CLIENT_CONFIG": ("C", "Path of that file. [default: `~/.config/pyoco/client.toml`]"),
    "PYOCO_DISCOVERY": ("GWKACU", "`0`: neither write nor read the discovery files of local servers. [default: 1]"),
    "PYOCO_QUIET": ("GWKAC", "`1`: do not print on stderr which local server is used. [default: 0]"),
    "PYOCO_DISCOVERY_MODULES": ("WE", "More modules to scan for tasks; read by the engine.", Audience.EXISTING),
    "PYOCO_CUTE": ("WE", "The engine's way of printing.", Audience.EXISTING),
    TEST_SETTINGS: (
        "GWKADPF",
        "Settings without a variable of their own, for the processes of a test: `name=value`, with commas. "
        "Rejected unless NATS is on this machine.",
        Audience.TESTS,
    ),
}
#: Secret, because the address may contain a password.
_SECRET_ELSEWHERE = ("PYOCO_SERVER_URL", "PYOCO_API_KEY")


def priced_from_env(environ: Mapping[str, str] | None = None) -> tuple[PricedConfig, AwsSettings]:
    """Read the settings of priced runs, as `NatsBackendConfig.from_env` does. Raises SettingError."""
    variables = with_dotenv(environ)
    return PricedConfig.read(variables), AwsSettings.read(variables)


def grid_from_env(environ: Mapping[str, str] | None = None, **overrides: object) -> GridConfig:
    """Read the settings of programs, as `NatsBackendConfig.from_env` does. Raises SettingError."""
    return GridConfig.read(with_dotenv(environ), **overrides)


def secret_variables() -> frozenset[str]:
    """Return the variables that contain passwords and keys, or addresses that may."""
    declared = (each for cls in _DECLARED for each in settings(cls))
    return frozenset(each.variable for each in declared if each.secret and each.has_variable).union(_SECRET_ELSEWHERE)


def unknown_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables that look like typos, each with the name that was probably meant. The caller logs them.

    A `PYOCO_*` name that resembles none of ours is ignored: it may belong to a user's tasks.
    """
    known = {*_ELSEWHERE, *(s.variable for cls in _DECLARED for s in settings(cls) if s.has_variable)}
    known |= REMOVED.keys()
    unknown = (name for name in sorted(environ) if name.upper().startswith("PYOCO") and name not in known)
    nearest = ((name, difflib.get_close_matches(name.upper(), sorted(known), n=1, cutoff=0.85)) for name in unknown)
    return {name: close[0] for name, close in nearest if close}


def unused_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables that no longer have an effect, each with what replaces it. The caller logs them."""
    return {name: instead for name, instead in _unused().items() if name in environ}


def _unused() -> dict[str, str]:
    kept = {s.variable: s.help for cls in _DECLARED for s in settings(cls) if s.audience is Audience.NOBODY}
    return {**kept, **REMOVED}


def variables_for_tests(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that are set and meant for tests only."""
    declared = {s.variable for cls in _DECLARED for s in settings(cls) if s.audience is Audience.TESTS}
    return tuple(name for name in sorted({*declared, TEST_SETTINGS}) if environ.get(name))


_DECLARED: tuple[
    type[NatsBackendConfig | PricedConfig | PackConfig | GridConfig | LogSettings | DotenvSettings], ...
] = (
    NatsBackendConfig,
    PricedConfig,
    PackConfig,
    GridConfig,
    LogSettings,
    DotenvSettings,
)


def reference() -> str:
    """Return the content of `docs/reference/settings.md`."""
    return reference_page(_DECLARED, _ELSEWHERE, _unused())
