"""`pyoco-server-admin nats-permissions` and `prepare`: a NATS with minimal permissions for each role."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from pyoco_server.doors.cli.shell import Command
from pyoco_server.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyoco_server.config import NatsBackendConfig
    from pyoco_server.wiring.access import Rights, Role

__all__ = ["nats_permissions", "prepare"]

_ROLES = ("gateway", "worker", "keeper", "door", "admin")

_HEAD = """\
# The users of pyoco-server and their permissions. Generated from its settings by
#   pyoco-server-admin nats-permissions
# Generate it again after an upgrade, or when names in the settings change.
#
# Passwords are variables: put each, best as a bcrypt hash, into passwords.conf beside this file, as
#   {variable}: "$2y$11$..."
# A process needs, for its role:
#   PYOCO_NATS_USER={user}
#   PYOCO_NATS_PASSWORD_FILE=/path/of/a/file
#   PYOCO_NATS_INBOX_PREFIX={inbox}
"""


@click.command(
    "nats-permissions",
    cls=Command,
    example="pyoco-server-admin nats-permissions > permissions.conf\n"
    "pyoco-server-admin nats-permissions --role gateway --role worker --account TEAM_A\n"
    "pyoco-server-admin nats-permissions --suffix '' --suffix=-b > permissions.conf",
)
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice(_ROLES),
    help="Print this role; may be repeated.  [default: all]",
)
@click.option("--account", default="PYOCO", show_default=True, metavar="NAME", help="Name of the NATS account.")
@click.option(
    "--suffix",
    "suffixes",
    multiple=True,
    metavar="TEXT",
    help="Print each role once per suffix (gateway-b for -b): old and new users during a password change.",
)
def nats_permissions(roles: tuple[str, ...], account: str, suffixes: tuple[str, ...]) -> None:
    """Print a NATS account with minimal permissions for each role.

    The output belongs into the configuration of NATS. Each role may publish and subscribe to what it needs, by the
    names in the settings, and to nothing else. Contacts no server.
    """
    from pyoco_server.config import NatsBackendConfig, grid_from_env, priced_from_env
    from pyoco_server.wiring.access import Role, nats_rights

    if not account.isidentifier():
        raise UsageError("--account may hold letters, digits and '_'; example: --account PYOCO")
    if not all(re.fullmatch(r"(-[a-z0-9]+)*", suffix) for suffix in suffixes):
        raise UsageError("--suffix may hold '-' and small letters or digits after it; example: --suffix=-b")
    chosen = [Role(name) for name in dict.fromkeys(roles or _ROLES)]
    rights = nats_rights(NatsBackendConfig.from_env(), priced_from_env()[0], grid_from_env(), chosen)
    click.echo("\n".join(_account(account, rights, tuple(dict.fromkeys(suffixes)) or ("",))))


def _account(account: str, rights: dict[Role, Rights], suffixes: tuple[str, ...]) -> Iterator[str]:
    from pyoco_server.wiring.access import inbox_prefix

    first = next(iter(rights))
    user = f"{first.value}{suffixes[0]}"
    yield _HEAD.format(variable=_variable(user), user=user, inbox=inbox_prefix(first))
    yield 'include "passwords.conf"'
    yield ""
    yield "accounts {"
    yield f"  {account} {{"
    yield "    jetstream: enabled"
    yield "    users: ["
    for role, each in rights.items():
        for user in (f"{role.value}{suffix}" for suffix in suffixes):
            yield f'      {{ user: "{user}", password: ${_variable(user)}, permissions {{'
            yield from _allowed("publish", each.publish)
            yield from _allowed("subscribe", each.subscribe)
            yield "      } }"
    yield "    ]"
    yield "  }"
    yield "}"


def _variable(user: str) -> str:
    return f"{user.upper().replace('-', '_')}_PASSWORD"


def _allowed(act: str, subjects: Iterable[str]) -> Iterator[str]:
    yield f"        {act} {{ allow: ["
    for subject in subjects:
        yield f'          "{subject}"'
    yield "        ] }"


@click.command("prepare", cls=Command, example="pyoco-server-admin prepare")
@click.pass_obj
def prepare(config: Callable[[], NatsBackendConfig]) -> None:
    """Create missing streams and buckets, for processes that are not permitted to.

    Existing ones are not changed, with two exceptions: stores whose retention has grown keep their objects for longer,
    and buckets of earlier versions refuse rollups. Run it before the first start, and before the first start of a new
    version.
    """
    import asyncio

    from pyoco_server.config import grid_from_env, priced_from_env
    from pyoco_server.wiring import access as wiring_access

    names = asyncio.run(wiring_access.prepare(config(), priced_from_env()[0], grid_from_env()))
    for name in sorted(names):
        click.echo(name)
