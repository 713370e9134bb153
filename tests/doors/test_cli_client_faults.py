"""`pyoco-client` when something is in its way: no server, a wrong key, another server, Ctrl-C, a reader that leaves."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.api_key import make_key
from pyoco_server.wiring.operating import open_keys
from support.client_commands import Client, process, terminal
from support.relays import relayed
from support.sites import Site, open_site
from support.strangers import response, somebody
from support.waiting import eventually

SECRET = "pyoco_0123456789abcdef_nobodyshallseethis"


@pytest.fixture
def client(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setenv("PYOCO_CLIENT_CONFIG", os.devnull)
    monkeypatch.setenv("PYOCO_API_KEY", SECRET)
    return Client(capsys, monkeypatch)


# No server, or another one


@pytest.mark.parametrize("words", [["health"], ["get", "x"], ["watch", "x"], ["wait", "x"], ["list", "--follow"]])
def test_an_unreachable_server_is_told_with_its_address_and_what_to_do(
    client: Client, words: list[str], unused_port: int
) -> None:
    """FLOW-64, FLOW-424, FLOW-427, FLOW-429"""
    ended = client("--server", f"http://me:password@127.0.0.1:{unused_port}", *words)
    assert (ended.code, ended.out) == (1, "")
    first, second = ended.err.splitlines()
    assert first.startswith(f"ERR-PYOCO-0001: no gateway answers at http://***@127.0.0.1:{unused_port} (--server): ")
    assert "pyoco-server up" in second
    assert "password" not in ended.err
    assert SECRET not in ended.err


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (response("200 OK", "<html>"), "ERR-PYOCO-0001: http://127.0.0.1:"),
        (response("404 Not Found", "<html>\x1b[2Jno</html>"), "HTTP 404: <html>\\x1b[2Jno</html>"),
        (response("418 I'm a teapot", ""), "HTTP 418: I'm a teapot"),
        (response("400 Bad Request", '["what"]'), 'HTTP 400: ["what"]'),
        (response("400 Bad Request", '{"err_id": 1}'), "HTTP 400: "),
        (response("307 Temporary Redirect", "", Location="http://elsewhere.invalid/"), "HTTP 307"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "ERR-PYOCO-0001: no gateway answers at "),
        (b"", "ERR-PYOCO-0001: no gateway answers at "),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "ERR-PYOCO-0001: no gateway answers at "),
    ],
    ids=lambda each: str(each)[:30],
)
def test_an_answer_that_no_gateway_gives_is_told_as_it_is(client: Client, answer: bytes, told: str) -> None:
    """FLOW-427, FLOW-429"""
    with somebody(answer) as url:
        ended = client("--server", url, "health")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(told)
    assert "\x1b" not in ended.err
    assert SECRET not in ended.err


@pytest.mark.parametrize("words", [["watch", "x"], ["wait", "x"], ["submit", "--flow-name", "f", "--wait"]])
def test_a_server_that_cannot_begin_is_told_at_once_whatever_it_asks_for(client: Client, words: list[str]) -> None:
    """FLOW-427: only what has begun is waited for"""
    body = '{"err_id": "ERR-PYOCO-0003", "message": "NATS is away."}'
    with somebody(response("503 Service Unavailable", body, **{"Retry-After": "86400"})) as url:
        ended = client("--server", url, *words)
    assert (ended.code, ended.out, ended.err) == (1, "", "HTTP 503 ERR-PYOCO-0003: NATS is away.\n")


# Keys


async def _made_key(config: NatsBackendConfig) -> str:
    plain, record = make_key("team", config.auth_pepper, 1.0, secrets.token_hex, secrets.token_urlsafe)
    async with open_keys(config) as keys:
        assert await keys.add(record)
    return plain


def test_a_key_comes_from_a_file_and_a_wrong_or_missing_one_is_told_without_showing_it(
    client: Client, nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLOW-51, FLOW-52, FLOW-427, FLOW-539"""
    with open_site(nats_url, tmp_path / "data", has_worker=False, http_auth_mode="api_key") as site:
        good = asyncio.run(_made_key(site.config))
        file = tmp_path / "client.toml"
        file.write_text(f'[default]\nserver = "{site.url}"\n[profiles.me]\nserver = "{site.url}"\napi_key = "{good}"\n')
        file.chmod(0o600)
        monkeypatch.setenv("PYOCO_CLIENT_CONFIG", str(file))
        wrong = client("list")
        assert (wrong.code, wrong.out) == (1, "")
        assert wrong.err.startswith(
            "HTTP 403 ERR-PYOCO-0015: The API key is invalid.\n  the key came from PYOCO_API_KEY;"
        )
        assert SECRET not in wrong.err
        monkeypatch.delenv("PYOCO_API_KEY")
        missing = client("list")
        assert missing.code == 1
        assert missing.err.startswith("HTTP 401 ERR-PYOCO-0014: An API key is required.\n  no key was sent (none)")
        assert str(file) in missing.err
        assert client("--profile", "me", "list").result == []
        file.chmod(0o644)
        warned = client("--profile", "me", "list")
        assert (warned.code, json.loads(warned.out)) == (0, [])
        assert f"chmod 600 {file}" in warned.err
        assert good not in warned.err


# Interrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("words", [["watch"], ["wait"], ["cancel", "--wait"]])
def test_an_interrupt_ends_the_command_with_130_and_nothing_else(
    site: Site, words: list[str], number: signal.Signals
) -> None:
    """FLOW-425, FLOW-429: the run continues"""
    with site.held() as run_id, process(site.url, words[0], run_id, *words[1:]) as waiting:
        if words[0] == "watch":
            assert waiting.stdout is not None
            assert json.loads(waiting.stdout.readline())["snapshot"]["status"] == "RUNNING"
        else:
            _until_it_waits(site, run_id, words[0], waiting.pid)
        waiting.send_signal(number)
        out, err = waiting.communicate(timeout=120)
        assert waiting.returncode == 130
        assert (out if words[0] != "watch" else "", err.strip()) == ("", "")
        assert site.status(run_id) == ("CANCELLING" if words[0] == "cancel" else "RUNNING")


def _until_it_waits(site: Site, run_id: str, command: str, pid: int) -> None:
    """What it has to do before is done: it is connected, and a cancel has arrived."""
    port = int(site.url.rpartition(":")[2])

    def waits() -> bool:
        connections = psutil.Process(pid).net_connections("tcp")
        is_connected = any(each.raddr and each.raddr.port == port for each in connections)
        return is_connected and (command != "cancel" or site.status(run_id) == "CANCELLING")

    asyncio.run(eventually(waits))


def test_a_reader_that_goes_away_ends_a_watch_quietly(site: Site) -> None:
    """`pyoco-client watch … | head -1`"""
    with site.held() as run_id, process(site.url, "watch", run_id) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        assert watching.stdout.readline()
        watching.stdout.close()
        site.let_go.set()  # the next event has nowhere to go
        assert watching.wait(120) == 1
        assert watching.stderr.read() == ""


def test_a_watch_survives_a_gateway_that_goes_away(site: Site) -> None:
    """FLOW-449: it reconnects until the run has ended"""
    with site.held() as run_id, relayed(site.url) as relay:
        with process(relay.url, "watch", run_id, "--output", "status") as watching:
            assert watching.stdout is not None
            assert watching.stdout.readline() == "RUNNING\n"
            relay.close_the_way()
            before = relay.connections
            asyncio.run(eventually(lambda: relay.connections >= before + 2))  # it tries again, in vain
            site.let_go.set()
            relay.open_the_way()
            out, err = watching.communicate(timeout=120)
        assert (out, err, watching.returncode) == ("COMPLETED\n", "", 0)


def test_under_nohup_a_closed_terminal_ends_nothing(site: Site) -> None:
    with site.held() as run_id, process(site.url, "watch", run_id, before=["nohup"]) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline()
        watching.send_signal(signal.SIGHUP)
        site.let_go.set()
        out, _ = watching.communicate(timeout=120)
        assert watching.returncode == 0
        assert json.loads(out.splitlines()[-1])["snapshot"]["status"] == "COMPLETED"


def test_a_watch_on_a_terminal_does_without_the_reason_for_waiting(site: Site) -> None:
    """FLOW-449: the stream is there, and the look beside it is in vain"""
    run_id = site.submitted("hello", tag=f"t{uuid.uuid4().hex[:12]}")
    with relayed(site.url) as relay, terminal(relay.url, "watch", run_id, "--timeout-sec", "60") as screen:
        relay.unwanted = f"GET /runs/{run_id} ".encode()
        screen.until(lambda sent: "PENDING" in sent and relay.cuts >= 3)
        relay.unwanted = None
        screen.until(lambda sent: "No worker serves tag" in sent)  # with the next heartbeat
        assert screen.interrupt() == 130


def test_an_end_that_was_seen_is_printed_though_the_last_look_fails(site: Site, tmp_path: Path) -> None:
    """FLOW-430"""
    out = tmp_path / "out"
    with out.open("wb") as stdout, site.held() as run_id, relayed(site.url) as relay:
        with terminal(relay.url, "wait", run_id, "--timeout-sec", "60", stdout=stdout) as screen:
            screen.until(lambda sent: "hold" in sent)
            relay.unwanted = f"GET /runs/{run_id} ".encode()
            site.let_go.set()
            assert screen.left() == 0
        assert relay.cuts >= 1
    snapshot = json.loads(out.read_text())
    assert (snapshot["status"], "task_records" in snapshot) == ("COMPLETED", False)


@pytest.mark.parametrize("command", ["watch", "wait"])
def test_a_watch_is_more_patient_than_a_single_call(
    client: Client, site: Site, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLOW-449"""
    monkeypatch.setattr("pyoco_server.doors.cli.client.calling._RETRY_SECONDS", 0.1)
    with site.held() as run_id, relayed(site.url) as relay:

        def be_away() -> None:
            asyncio.run(eventually(lambda: b"event: snapshot" in relay.seen))  # the watch has begun
            relay.close_the_way()
            before = relay.connections
            asyncio.run(eventually(lambda: relay.connections >= before + 2))
            site.let_go.set()
            relay.open_the_way()

        with ThreadPoolExecutor() as beside:
            away = beside.submit(be_away)
            ended = client("--server", relay.url, command, run_id)
            away.result()
    assert (ended.code, ended.err) == (0, "")
    assert '"status": "COMPLETED"' in ended.out


def test_a_list_that_is_followed_waits_for_a_gateway_that_goes_away(site: Site) -> None:
    tag = f"t{uuid.uuid4().hex[:12]}"
    first = site.submitted("f", tag=tag)
    with (
        relayed(site.url) as relay,
        process(relay.url, "list", "--follow", "--tag", tag, "--interval-sec", "0.2") as following,
    ):
        assert following.stdout is not None
        assert following.stderr is not None
        assert json.loads(following.stdout.readline())["run_id"] == first
        relay.close_the_way()
        assert following.stderr.readline().startswith("the server is unavailable; waiting for it (")
        second = site.submitted("f", tag=tag)
        relay.open_the_way()
        assert json.loads(following.stdout.readline())["run_id"] == second
        assert following.stderr.readline() == "the server is available again\n"
        following.send_signal(signal.SIGINT)
        assert following.wait(120) == 130
