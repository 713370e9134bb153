"""`pyoco-server`: starts everything (`up`), a demo cluster (`cluster demo`) or a gateway (`gateway`), runs `doctor`, or
creates a project (`new`)."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import click

from pyoco_server.doors.cli.cluster import cluster
from pyoco_server.doors.cli.shell import Group, run

__all__ = ["cli", "main"]

_PORT = click.IntRange(0, 65535)

_host = click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
_port = click.option("--port", type=_PORT, default=8000, show_default=True, help="Port to listen on; 0: a free one.")
_nats_url = click.option("--nats-url", metavar="URL", help="Use this NATS server. [env: PYOCO_NATS_URL]")
_data_dir = click.option(
    "--data-dir", metavar="DIR", help="Directory for data, logs and locks. [env: PYOCO_DATA_DIR; default: .pyoco]"
)
_dashboard_lang = click.option(
    "--dashboard-lang", type=click.Choice(["auto", "ja", "en"]), help="Language of the dashboard."
)


@click.group(
    cls=Group,
    example="pyoco-server up --with-examples",
    context_settings={"max_content_width": 110},
    invoke_without_command=True,
)
@click.version_option(package_name="pyoco-server")
@_dashboard_lang
@click.pass_context
def cli(context: click.Context, /, dashboard_lang: str | None) -> int | None:
    """Submit work over HTTP; it runs once, on some worker, while you watch.

    Without a command, `--dashboard-lang` starts the gateway.
    """
    if context.invoked_subcommand is None:
        if dashboard_lang is None:
            context.fail("Missing command.")
        return int(context.invoke(gateway, dashboard_lang=dashboard_lang))
    if dashboard_lang is not None:
        context.default_map = {name: {"dashboard_lang": dashboard_lang} for name in ("up", "gateway")}
    return None


@cli.command(
    example="pyoco-server up --with-examples\n"
    "pyoco-server up my_flows:app\n"
    "pyoco-server up --port 9000 --flow-resolver my_flows:resolve"
)
@click.argument("app", metavar="[MODULE:APP]", required=False)
@_host
@_port
@_data_dir
@_nats_url
@click.option(
    "--with-nats-bootstrap", is_flag=True, help="Start NATS by `nats-bootstrap up`, on ports 4222 and 8222 by default."
)
@click.option(
    "--nats-listen-host",
    metavar="HOST",
    help="Address of our NATS, which requires no password. [default: 127.0.0.1]",
)
@click.option("--nats-client-port", type=_PORT, help="Client port of our NATS; 0: a free one. [default: 0]")
@click.option("--nats-http-port", type=_PORT, help="Monitoring port of our NATS; 0: none. [default: 0]")
@click.option(
    "--frames-port", type=_PORT, help="Also open a door for `pyoco-grid` workers and clients; 0: a free port."
)
@click.option(
    "--open-frames",
    is_flag=True,
    help="That door requires no key (EXEC_AUTH=none) although HTTP does (PYOCO_HTTP_AUTH_MODE=api_key).",
)
@click.option("--workers", type=click.IntRange(0, 256), default=1, show_default=True, help="Workers to start.")
@click.option("--no-worker", is_flag=True, help="The same as --workers 0.")
@click.option("--no-keeper", is_flag=True, help="Start no keeper: another machine runs one.")
@click.option("--with-examples", is_flag=True, help="Without --flow-resolver: offer the example flows.")
@click.option(
    "--flow-resolver", metavar="MODULE:CALLABLE", help="Where workers find flows by name. [env: PYOCO_FLOW_RESOLVER]"
)
@click.option("--slots", type=click.IntRange(1, 4096), help="Runs at once on each worker. [default: its CPUs]")
@click.option("--tags", metavar="TAG,…", help="Tags that the workers serve. [default: the default tag]")
@click.option(
    "--wheel-sync", is_flag=True, help="Workers install the wheels of the registry. [env: PYOCO_WHEEL_SYNC_ENABLED]"
)
@click.option("--no-programs", is_flag=True, help="Workers run no programs. [default: those of EXEC_DIR, or samples]")
@_dashboard_lang
def up(*, no_worker: bool, no_keeper: bool, no_programs: bool, workers: int, **given: Any) -> int:
    """Start everything on this machine: NATS, the gateway, a keeper and a worker.

    With MODULE:APP its workers serve the flows of an app; the current directory is importable.

    Without --nats-url it starts a NATS server of its own, whose data is stored under --data-dir and survives a restart.

    A process that exits is restarted. Ctrl-C stops everything in order; a second one stops immediately.

    On a terminal, warnings are shown and everything else is in DIR/logs; otherwise all log lines go to stdout.
    """
    from pyoco_server.doors.cli.plan import UpOptions
    from pyoco_server.doors.cli.up import up as start_everything

    return start_everything(
        UpOptions(workers=0 if no_worker else workers, keeper=not no_keeper, programs=not no_programs, **given)
    )


@cli.command(example="pyoco-server gateway --port 8001\npyoco-server gateway --nats-url nats://10.0.0.5:4222")
@_host
@_port
@_nats_url
@_data_dir
@_dashboard_lang
@click.option("--fd", type=click.IntRange(min=3), hidden=True, help="A listening socket that `up` hands down.")
def gateway(*, host: str, port: int, fd: int | None, **given: Any) -> int:
    """Serve HTTP in this process. Any number of gateways may use one NATS.

    Without --nats-url it uses the NATS and the data directory of the server that runs on this machine.
    """
    from pyoco_server.doors.cli.claims import open_port
    from pyoco_server.doors.cli.local_server import settle
    from pyoco_server.doors.cli.typos import warn_of_typos
    from pyoco_server.logs import configure_logging

    config = settle(**given).config
    configure_logging("pyoco-server:http", name="gateway")
    warn_of_typos()
    with open_port(host, port) if fd is None else socket.socket(fileno=fd) as listening:
        from pyoco_server.doors.cli.gateway import serve  # takes 1 s to import: after the checks

        return serve(config, listening)


@cli.command(example="pyoco-server doctor\npyoco-server doctor --nats-url nats://127.0.0.1:4222 --json --strict")
@_nats_url
@click.option("--nats-http", metavar="URL", help="Monitoring URL of NATS, for checks that need it.")
@click.option(
    "--server", envvar="PYOCO_SERVER_URL", metavar="URL", help="Also check this gateway. [env: PYOCO_SERVER_URL]"
)
@_data_dir
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings, too.")
def doctor(**given: Any) -> int:
    """Check a deployment, and report what to fix: NATS, streams, queues, workers, keeper, disks, settings.

    Without --nats-url it checks the server that runs on this machine, or the NATS that `up` last ran in this directory.
    It only reads. The exit code is 1 if data would be lost or work would stop.
    """
    from pyoco_server.doors.cli.doctor import DoctorOptions
    from pyoco_server.doors.cli.doctor import doctor as run_doctor

    return run_doctor(DoctorOptions(**given))


@cli.command(example="pyoco-server new reports")
@click.argument("name", type=click.Path(path_type=Path))
def new(*, name: Path) -> int:
    """Create the directory NAME with an app: a flow, its test, and a README.

    Its test passes at once, without a server: run `pytest` in the directory.
    """
    from pyoco_server.doors.cli.new_project import create_project

    for file in create_project(name):
        click.echo(f"created {file}")
    click.echo(f"\nNext: cd {name} && pytest")
    return 0


cli.add_command(cluster)


def main() -> None:
    run(cli, "pyoco-server")


if __name__ == "__main__":
    main()
