"""`pyoco-server` and `pyoco-keeper`: help, exit codes, and what is imported for them (section 19.1)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.doors.cli import claims, gateway, keeper, server
from pyoco_server.doors.cli.shell import Command, outcome
from pyoco_server.errors import Unavailable, UsageError
from support.servers import NatsServer
from support.warm_processes import begun

SCRIPTS = Path(sys.executable).parent
HEAVY = ("asyncio", "fastapi", "msgspec", "nats", "pyoco", "starlette", "uvicorn", "uvloop", "yaml")

COMMANDS = [
    ("pyoco-server", server.cli, []),
    ("pyoco-server", server.cli, ["up"]),
    ("pyoco-server", server.cli, ["gateway"]),
    ("pyoco-keeper", keeper.cli, []),
]


@pytest.mark.parametrize(("name", "command", "path"), COMMANDS, ids=str)
def test_help_shows_an_example_that_is_accepted(
    name: str, command: click.Command, path: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """FLOW-428"""
    assert outcome(command, name, [*path, "--help"]) == 0
    shown = capsys.readouterr().out
    examples = [line.split() for line in shown.partition("Example:\n")[2].splitlines() if line]
    assert examples
    for words in examples:
        assert words[0] == name
        _parse(command, words[1:])


def _parse(command: click.Command, words: list[str]) -> None:
    """Raises when the command line is not a valid one; runs nothing."""
    with command.make_context("test", list(words)) as context:
        if isinstance(command, click.Group):
            name, inner, rest = command.resolve_command(context, [*context._protected_args, *context.args])
            assert inner is not None
            with inner.make_context(name, rest, parent=context):
                return


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ([], "Missing command"),
        (["fly"], "No such command 'fly'"),
        (["up", "--prot", "1"], "No such option '--prot'"),
        (["up", "--port", "http"], "'http' is not a valid"),
        (["up", "--port", "70000"], "70000"),
        (["up", "--workers", "-1"], "-1"),
        (["up", "--dashboard-lang", "fr"], "'fr'"),
        (["--dashboard-lang", "fr"], "'fr'"),
        (["up", "extra"], "extra"),
        (["up", "--nats-url", "nats://127.0.0.1:4222", "--nats-client-port", "4223"], "--nats-url"),
        (["up", "--nats-url", "not an address"], "PYOCO_NATS_URL"),
        (["up", "--data-dir", "/dev/null/x"], "/dev/null/x"),
        (["gateway", "--host", "no.such.host.invalid"], "no.such.host.invalid"),
    ],
)
def test_a_wrong_command_line_ends_with_1_the_error_id_and_an_example(
    arguments: list[str], wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """FLOW-424, FLOW-426, FLOW-429"""
    assert outcome(server.cli, "pyoco-server", arguments) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("ERR-PYOCO-0018: ")
    assert wrong in said.err
    assert "example: " in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("arguments", "language"),
    [
        (["--dashboard-lang", "ja"], "ja"),
        (["--dashboard-lang", "ja", "gateway"], "ja"),
        (["--dashboard-lang", "ja", "gateway", "--dashboard-lang", "en"], "en"),
    ],
)
def test_the_language_may_stand_before_the_command(
    arguments: list[str], language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLI-13: without a command it starts the gateway."""
    served: list[str] = []

    def serve(config: NatsBackendConfig, listening: socket.socket) -> int:
        served.append(config.dashboard_lang)
        return 0

    monkeypatch.setattr(gateway, "serve", serve)
    monkeypatch.setattr(claims, "open_port", lambda _host, _port: socket.socket())
    assert outcome(server.cli, "pyoco-server", arguments) == 0
    assert served == [language]


def _command(what: BaseException | int | None) -> click.Command:
    @click.command(cls=Command, example="do it")
    def do() -> int | None:
        if isinstance(what, BaseException):
            raise what
        return what

    return do


@pytest.mark.parametrize(
    ("what", "code", "said"),
    [
        (None, 0, ""),
        (1, 1, ""),
        (130, 130, ""),
        (UsageError("no"), 1, "ERR-PYOCO-0018: no\nexample: do it\n"),
        (UsageError("no; example: yes"), 1, "ERR-PYOCO-0018: no; example: yes\n"),
        (Unavailable("gone"), 1, "ERR-PYOCO-0003: gone\n"),
        (KeyboardInterrupt(), 130, "\n"),
    ],
    ids=repr,
)
def test_what_a_command_comes_to_is_its_exit_code(
    what: BaseException | int | None, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """FLOW-423 to FLOW-425, FLOW-429"""
    assert outcome(_command(what), "do", []) == code
    assert capsys.readouterr().err == said


def test_a_defect_of_ours_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        outcome(_command(ZeroDivisionError()), "do", [])


@pytest.mark.parametrize("name", ["server", "keeper"])
def test_help_imports_nothing_heavy(name: str) -> None:
    """So that it answers within a blink; how long it took is the machine's affair."""
    script = (
        f"import sys; from pyoco_server.doors.cli import {name}, shell\n"
        f"shell.outcome({name}.cli, 'x', ['--help'])\n"
        f"sys.stderr.write(' '.join(m for m in {HEAVY!r} if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("command", "environment"),
    [
        (["pyoco-keeper", "--nats-url", "memory://x"], {}),
        (["pyoco-server", "gateway"], {"PYOCO_NATS_URL": "memory://x"}),
        (["pyoco-worker", "--flow-resolver", "a:b", "--tags", "t"], {"PYOCO_NATS_URL": "memory://x"}),
        (["pyoco-server-admin", "api-key", "list"], {"PYOCO_NATS_URL": "memory://x"}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_store_in_memory_is_refused_by_commands(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(
        [SCRIPTS / command[0], *command[1:]],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=os.environ | environment,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "PYOCO_NATS_URL" in done.stderr
    assert "memory:// is for tests" in done.stderr


def test_a_reader_that_goes_away_is_no_reason_for_a_traceback() -> None:
    with subprocess.Popen(
        [SCRIPTS / "pyoco-server", "up", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(120) in {0, 1}


def test_without_examples_in_reach_the_option_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pyoco_server.doors.cli.plan._PACKAGE", tmp_path / "a" / "b")
    assert outcome(server.cli, "pyoco-server", ["up", "--with-examples"]) == 1
    said = capsys.readouterr().err
    assert "finds no examples" in said
    assert "--flow-resolver" in said


@pytest.mark.parametrize("host", ["no.such.host.invalid", "\udcff", "a" * 70 + ".example"])
def test_an_address_that_is_none_is_a_usage_error(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    """FLOW-426, FLOW-429, FLOW-459"""
    assert outcome(server.cli, "pyoco-server", ["gateway", "--host", host, "--port", "0"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("ERR-PYOCO-0018: ")
    assert "is not an address to listen on" in said


def test_a_missing_nats_bootstrap_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FLOW-459"""
    monkeypatch.setattr("pyoco_server.doors.cli.plan.find_command", lambda name: None)
    ports = ["--port", "0", "--nats-client-port", "0", "--nats-http-port", "0"]
    arguments = ["up", "--with-nats-bootstrap", "--data-dir", str(tmp_path), *ports]
    assert outcome(server.cli, "pyoco-server", arguments) == 1
    assert "pip install 'pyoco-server[bootstrap]'" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
@pytest.mark.parametrize(
    ("arguments", "ready"),
    [(["pyoco-keeper"], "keeper started"), (["pyoco-server", "gateway", "--port", "0"], "Started")],
)
def test_a_signal_ends_it_in_order(
    arguments: list[str], ready: str, number: signal.Signals, code: int, own_nats_server: NatsServer, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with out.open("wb") as stdout:
        command = [str(SCRIPTS / arguments[0]), *arguments[1:], "--nats-url", own_nats_server.url]
        process = begun(command, stdout=stdout, cwd=tmp_path)
    try:
        deadline = time.monotonic() + 120
        while ready not in out.read_text():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        assert process.wait(120) == code
    finally:
        process.kill()
        process.wait()
