"""`pyoco-client` before it talks to anybody: its help, its arguments, how fast it starts, what a shell completes."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pyoco_server.doors.cli.client import COMMANDS, cli
from support.client_commands import COMMAND, Client

#: What none of these may import for its help: 60 ms and more each.
HEAVY = ("httpx", "rich", "asyncio", "fastapi", "nats", "msgspec", "yaml", "pyoco", "pyoco_server.config")


@pytest.fixture
def client(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Client:
    """There is no server at its default address."""
    monkeypatch.setenv("PYOCO_SERVER_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("PYOCO_CLIENT_CONFIG", os.devnull)
    return Client(capsys, monkeypatch)


def walk(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from walk(inner, (*path, name))


ALL = dict(walk(cli))


@pytest.mark.parametrize("path", ALL, ids=lambda path: " ".join(path) or "pyoco-client")
def test_every_help_shows_examples_that_are_understood(client: Client, path: tuple[str, ...]) -> None:
    """FLOW-428"""
    ended = client(*path, "--help")
    assert (ended.code, ended.err) == (0, "")
    lines = [line.strip() for line in ended.out.partition("Example:\n")[2].splitlines() if line.strip()]
    assert lines
    for line in lines:
        words = shlex.split(line.removeprefix('eval "$(').removesuffix(')"'), comments=True)
        assert words[0] == "pyoco-client"
        understand(words[1:])


def understand(words: list[str]) -> None:
    """Raises when it is not a valid command line; runs nothing."""
    command: click.Command | None = cli
    context: click.Context | None = None
    words = words[: words.index("<")] if "<" in words else words
    while isinstance(command, click.Group):
        context = command.make_context("pyoco-client", words, parent=context)
        _, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
    assert command is not None
    command.make_context("pyoco-client", words, parent=context)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_tells_of_a_command_what_it_tells_of_itself(name: str) -> None:
    """The help of the whole is printed from the table, so that it imports nothing."""
    entry = COMMANDS[name]
    command = entry.load()
    assert command.name == name
    assert (command.help or "").splitlines()[0] == entry.summary


def test_the_contract_is_there_and_the_main_route_comes_first(client: Client) -> None:
    """FLOW-431 to FLOW-445"""
    wanted = """submit submit-yaml get tasks list list-vnext watch cancel workers metrics wheels wheel-history
        wheel-upload wheel-delete rerun batch wait why dlq worker-show worker-hide worker-unhide wheel-download health
        completion"""
    assert set(wanted.split()) <= set(COMMANDS)
    assert cli.list_commands(click.Context(cli))[0] == "submit-yaml"
    shown = client("--help").out
    assert "Submit:\n  submit-yaml " in shown
    assert "Example:\n  pyoco-client submit-yaml " in shown


OPTIONS = {
    "submit": "flow-name tag tags params-file params param",
    "submit-yaml": "workflow-file flow-name tag wait timeout-sec fail",
    "get": "run-id include",
    "tasks": "run-id",
    "list": "status flow tag limit include workflow-yaml-sha256 output",
    "list-vnext": "status flow tag limit include workflow-yaml-sha256 output updated-after cursor",
    "watch": "run-id include since timeout-sec output",
    "cancel": "run-id wait timeout-sec",
    "workers": "scope state include-hidden limit tag",
    "wheel-history": "limit wheel-name action",
    "wheel-upload": "wheel-file tags replace no-replace",
    "wheel-delete": "wheel-name",
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_command_has_the_options_of_the_contract(name: str) -> None:
    """FLOW-431 to FLOW-444"""
    have = {word for param in ALL[name,].params for word in (*param.opts, *param.secondary_opts)}
    assert {f"--{word}" for word in OPTIONS[name].split()} <= have


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ([], "Missing command"),
        (["fly"], "No such command 'fly'"),
        (["lst"], "'list'"),
        (["get"], "--run-id"),
        (["get", ""], "must not be empty"),
        (["get", "--run-id", "a", "b"], "one of them"),
        (["get", "a", "b"], "b"),
        (["get", "--run_id", "a"], "--run_id"),
        (["submit"], "--flow-name"),
        (["submit", "--flow-name", "f", "--params", "{"], "--params is not JSON"),
        (["submit", "--flow-name", "f", "--params", "[1]"], "must be a JSON object"),
        (["submit", "--flow-name", "f", "--params", '{"x": NaN}'], "NaN"),
        (["submit", "--flow-name", "f", "--params", '{"x": 1e999}'], "1e999"),
        (["submit", "--flow-name", "f", "--params", "[" * 100_000], "not JSON"),
        (["submit", "--flow-name", "f", "--params-file", "/nonexistent"], "/nonexistent"),
        (["submit", "--flow-name", "f", "--param", "x"], "KEY=VALUE"),
        (["submit", "--flow-name", "f", "--param", "=x"], "KEY=VALUE"),
        (["submit", "--flow-name", "f", "--idempotency-key", "a b"], "visible ASCII"),
        (["submit", "--flow-name", "f", "--wait", "--timeout-sec", "-1"], "-1"),
        (["submit-yaml", "--workflow-file", "/nonexistent", "--flow-name", "f"], "/nonexistent"),
        (["submit-yaml", "--workflow-file", "/dev/null"], "--flow-name"),
        (["watch", "x", "--output", "xml"], "xml"),
        (["watch", "x", "--timeout-sec", "soon"], "soon"),
        (["watch", "x", "--timeout-sec", "nan"], "nan"),
        (["list", "--limit", "many"], "many"),
        (["list", "--follow", "--include", "full"], "--include"),
        (["cancel"], "--run-id"),
        (["cancel", "x", "--all-matching"], "give one of"),
        (["cancel", "x", "--tag", "t"], "--all-matching"),
        (["cancel", "--all-matching"], "needs a filter"),
        (["cancel", "--all-matching", "--tag", ""], "--tag must not be empty"),
        (["cancel", "--all", "--tag", "t"], "takes no filter"),
        (["cancel", "--all-matching", "--tag", "t"], "--yes"),
        (["cancel", "--all", "--wait", "--yes"], "--wait"),
        (["dlq"], "Missing command"),
        (["dlq", "show"], "--letter-id"),
        (["dlq", "redrive"], "--letter-id"),
        (["dlq", "redrive", "--all", "--param", "x=1", "--yes"], "one letter"),
        (["dlq", "delete", "--all"], "--yes"),
        (["dlq", "delete", "1", "--reason", "x"], "--all-matching"),
        (["batch", "/nonexistent"], "/nonexistent"),
        (["wheel-upload"], "--wheel-file"),
        (["wheel-upload", "/nonexistent.whl"], "/nonexistent.whl"),
        (["wheel-download", "../x.whl"], "'../x.whl'"),
        (["wheel-download", "x.zip"], "'x.zip'"),
        (["wheel-download", "x.whl", "--to", "/nonexistent/y"], "/nonexistent"),
        (["wheel-history", "--action", "rename"], "rename"),
        (["completion", "tcsh"], "tcsh"),
        (["--server", "ftp://x", "health"], "'ftp://x'"),
        (["--server", "127.0.0.1:8000", "health"], "--server http://"),
        (["--server", "http://x:99999", "health"], "http://x:99999"),
        (["--server", "http://x/?a=b", "health"], "address"),
        (["--api-key", "two\nlines", "health"], "API key"),
        (["--profile", "staging", "health"], "staging"),
        (["get", "\udcff"], "not text"),
    ],
    ids=lambda each: " ".join(each)[:40] if isinstance(each, list) else None,
)
def test_a_wrong_command_line_ends_with_1_the_error_id_and_an_example(
    client: Client, arguments: list[str], wrong: str
) -> None:
    """FLOW-424, FLOW-426, FLOW-429, FLOW-430"""
    ended = client(*arguments)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("ERR-PYOCO-0018: ")
    assert wrong in ended.err
    assert "example: " in ended.err


def modules_after(*arguments: str, **variables: str) -> list[str]:
    """Which of the heavy ones, and which of our own, were imported by the time the command ended."""
    program = (
        "import sys\nfrom pyoco_server.doors.cli import client, shell\n"
        f"try:\n    shell.outcome(client.cli, 'pyoco-client', {list(arguments)!r})\n"
        f"finally:\n    sys.stderr.write(' '.join(m for m in {HEAVY!r} if m in sys.modules) + ' ')\n"
        "    ours = 'pyoco_server.doors.cli.'\n"
        "    found = sorted(m.removeprefix(ours) for m in sys.modules if m.startswith(ours + 'client.'))\n"
        "    sys.stderr.write(' '.join(found))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **variables},
        check=True,
    )
    assert done.stdout
    return done.stderr.split()


#: What the group itself needs.
OWN = ["client.group", "client.groups"]


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["watch", "--help"], ["config"], ["completion", "zsh"]]
)
def test_what_needs_no_server_imports_nothing_heavy(arguments: list[str]) -> None:
    """So that it answers within a blink; how long it took is the machine's affair."""
    assert [name for name in modules_after(*arguments) if not name.startswith("client.")] == []


def test_the_help_of_the_whole_imports_no_command() -> None:
    """The table is enough."""
    assert modules_after("--help") == OWN


def test_completion_imports_no_command() -> None:
    words = {"_PYOCO_CLIENT_COMPLETE": "bash_complete", "COMP_WORDS": "pyoco-client ", "COMP_CWORD": "1"}
    assert modules_after(**words) == OWN


def test_a_call_does_without_the_command_line_that_httpx_brings() -> None:
    """It would load rich, which takes a third of the start."""
    program = (
        "import sys\nfrom pyoco_server.doors.cli import client, shell\n"
        "shell.outcome(client.cli, 'x', ['--server', 'http://127.0.0.1:1', 'health'])\n"
        "print([m for m in ('httpx', 'rich', 'pygments') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "['httpx']"


def completions(line: str, **variables: str) -> list[str]:
    words = line.split(" ")
    asked = {"_PYOCO_CLIENT_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [COMMAND], capture_output=True, text=True, timeout=120, env={**os.environ, **asked, **variables}, check=True
    )
    assert done.stderr == ""
    return [each.partition(",")[2] for each in done.stdout.splitlines() if each]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("pyoco-client wai", ["wait"]),
        ("pyoco-client list --status F", ["FAILED"]),
        ("pyoco-client dlq red", ["redrive"]),
        ("pyoco-client exe", []),  # an old spelling
        ("pyoco-client worker sh", ["show"]),
        ("pyoco-client watch --output ", ["json", "status", "tree"]),
    ],
)
def test_a_shell_completes_commands_options_and_known_words(line: str, offered: list[str]) -> None:
    assert completions(line) == offered


def test_a_shell_completes_profiles(tmp_path: Path) -> None:
    file = tmp_path / "client.toml"
    file.write_text("[default]\n[profiles.staging]\n[profiles.production]\n")
    assert completions("pyoco-client --profile s", PYOCO_CLIENT_CONFIG=str(file)) == ["staging"]
    file.write_text("[default")
    assert completions("pyoco-client --profile ", PYOCO_CLIENT_CONFIG=str(file)) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_names_the_command(client: Client, shell: str) -> None:
    script = client("completion", shell).out
    assert "pyoco-client" in script
    assert f"_PYOCO_CLIENT_COMPLETE={shell}_complete" in script


def test_bash_takes_the_script() -> None:
    script = f'PATH={Path(COMMAND).parent}:$PATH; eval "$(pyoco-client completion bash)"; complete -p pyoco-client'
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert "_pyoco_client_completion" in done.stdout


def test_output_that_cannot_be_written_is_told_without_a_traceback() -> None:
    """FLOW-424, FLOW-429: a full disk"""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [COMMAND, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False
        )
    assert (done.returncode, done.stderr) == (
        1,
        "ERR-PYOCO-0032: There is no room left on the disk. The output is incomplete.\n",
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("words", "code"), [("--help", 0), ("fly", 1), ("health", 1), ("list --follow", 1)])
def test_a_stream_that_is_closed_is_no_reason_to_stumble(words: str, code: int, closed: str) -> None:
    """FLOW-423, FLOW-424, FLOW-429: `pyoco-client … >&-`"""
    done = subprocess.run(
        ["bash", "-c", f"{COMMAND} --server http://127.0.0.1:1 {words} {closed}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert ("ERR-PYOCO" in done.stderr) == (code == 1 and closed == ">&-")


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("module", ["click", "pyoco_server.doors.cli.client.server"])
def test_an_interrupt_while_modules_are_imported_shows_no_traceback(module: str, number: str) -> None:
    """FLOW-425, FLOW-429"""
    program = (
        "import os, signal, sys\n"
        "class Impatient:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.{number})\n"
        "sys.meta_path.insert(0, Impatient())\n"
        "sys.argv = ['pyoco-client', 'health', '--help']\n"
        "from pyoco_server.doors.cli.client import main\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")
