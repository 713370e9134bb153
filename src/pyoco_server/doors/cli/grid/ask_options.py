"""The options that `client` and `clientx` share (section 17.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from pyoco_server.doors.cli.client.times import DURATION, INSTANT

__all__ = ["job_options"]

_F = TypeVar("_F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--exec", "exec_name", metavar="NAME", default="calcA", show_default=True, help="Program to run."),
    click.option("--count", metavar="N", type=click.IntRange(min=1), help="Jobs to submit. [default: 3]"),
    click.option("--arg", "args", metavar="A", multiple=True, help="Argument of the program. May be repeated."),
    click.option(
        "--file",
        "files",
        metavar="PATH",
        multiple=True,
        type=click.Path(exists=True, dir_okay=False),
        help="Input file of each job. May be repeated.",
    ),
    click.option("--job-id", metavar="UUID", help="Job id: submitting again under it is safe. For one job only."),
    click.option("--timeout-sec", metavar="N", type=float, help="Run time of the program. [default: the door's]"),
    click.option("--in", "delay", type=DURATION, metavar="DURATION", help="Start the jobs after this: 10m, 1h30m."),
    click.option(
        "--at",
        "not_before",
        type=INSTANT,
        metavar="WHEN",
        help="Start no job before this: 2026-12-01T09:00.",
    ),
    click.option("--out", metavar="DIR", type=click.Path(file_okay=False), help="Unpack archives to DIR/<JobId>/."),
    click.option("--cancel", metavar="UUID", help="Cancel this job, and submit none."),
    click.option("--stats", is_flag=True, help="Print statistics of each group on stderr at the end."),
    click.option("--connect-timeout", metavar="SEC", type=float, help="Give up if no door responds within this time."),
    click.option("--tls", is_flag=True, help="Use TLS; a known authority must have signed the door's certificate."),
    click.option("--tls-ca", metavar="FILE", help="Use TLS with this authority."),
    click.option("--tls-cert", metavar="FILE", help="Certificate of this client, for doors that require one."),
    click.option("--tls-key", metavar="FILE", help="Its key."),
)


def job_options(command: _F) -> _F:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
