"""The page `docs/reference/settings.md`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pyoco_server.config.settings import PATH, Audience, Elsewhere, Setting, settings, written

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["reference_page"]


_USERS = {
    "G": "gateway",
    "W": "worker",
    "K": "keeper",
    "A": "admin command",
    "C": "client",
    "U": "`pyoco-server up`",
    "E": "engine",
    "D": "door",
    "P": "worker of programs",
    "F": "client over TCP",
}


def reference_page(
    declared: Iterable[type[DataclassInstance]], elsewhere: Mapping[str, Elsewhere], unused: Mapping[str, str]
) -> str:
    """Return the reference page of these classes, of variables read by other parts, and of those without an effect."""
    rows = [s for cls in declared for s in settings(cls) if s.has_variable]
    rows += [_elsewhere(name, *about) for name, about in elsewhere.items()]
    tables = {each: [_row(s) for s in rows if s.audience is each] for each in Audience}
    return _REFERENCE.format(
        rows="\n".join(tables[Audience.USERS]),
        existing="\n".join(tables[Audience.EXISTING]),
        tests="\n".join(tables[Audience.TESTS]),
        removed="\n".join(f"| `{name}` | {instead} |" for name, instead in sorted(unused.items())),
    )


def _elsewhere(variable: str, used_by: str, text: str, audience: Audience = Audience.USERS) -> Setting:
    return Setting(
        name=variable.lower(), default="", kind=PATH, used_by=used_by, help=text, audience=audience, prefix=""
    )


def _row(setting: Setting) -> str:
    return f"| `{setting.variable}` | {_shown_default(setting)} | {setting.help} | {_users(setting.used_by)} |"


def _shown_default(setting: Setting) -> str:
    return f"`{written(setting.default)}`" if setting.default not in {"", ()} else "unset"


def _users(letters: str) -> str:
    return ", ".join(_USERS[letter] for letter in letters)


_REFERENCE = """\
# Settings

<!-- Generated: python docs/generate.py -->

A command-line option wins over the environment, the environment over the dotenv file, the file over the default.
A value that does not parse or is out of range stops the process with a message that names the variable; a bad
`PYOCO_LOG_*` value or `PYOCO_DASHBOARD_LANG` is a warning, and the default is used. Booleans are `1`, `true`, `yes`,
`on` and `0`, `false`, `no`, `off`, in any case. A variable that looks like a misspelt one of these is reported in the
log.

In Python each setting is a field of `pyoco_server.config.NatsBackendConfig`, in lower case and without `PYOCO_`; the
`PYOCO_LOG_*` ones are fields of `LogSettings`. The stream of jobs, `work_stream`, is a field without a variable.

A dotenv file has one `NAME=value` per line. `export` in front, `# comments`, `'text as it is'` and
`"text with \\n escapes"` are understood; `$NAME` is not replaced. A line that is none of this stops the process.

| Variable | Default | Meaning | Used by |
|---|---|---|---|
{rows}

## Leave these as they are

Names, timers and limits whose defaults fit nearly every deployment; the names are for deployments that share one NATS.
Most of these must be the same for all processes.

| Variable | Default | Meaning | Used by |
|---|---|---|---|
{existing}

## For tests only

`pyoco-server doctor` is red while one of these is set.

| Variable | Default | Meaning | Used by |
|---|---|---|---|
{tests}

## No longer used

A process that finds one of these starts, and logs a warning once.

| Variable | In effect instead |
|---|---|
{removed}
"""
