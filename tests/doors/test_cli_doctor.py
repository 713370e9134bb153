"""`pyoco-server doctor`: what it finds on real servers, how it says so, and its exit codes."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.doors.cli import server
from pyoco_server.doors.cli.shell import outcome
from pyoco_server.embedded import EmbeddedNats
from pyoco_server.ports.deployment.machine import disks_of, own_nats_of
from support.configured_nats import configured_nats
from support.doctor_commands import Doctor, a_worker, announced, doctor, nothing, on
from support.servers import NatsServer
from support.surroundings import variables_without
from support.warm_processes import begun

__all__ = ["doctor"]

ROOT = Path(__file__).parents[2]
SCRIPT = Path(sys.executable).parent / "pyoco-server"


# Where nothing is, or little


def test_without_nats_it_says_so_soon_and_how_to_mend_it(doctor: Doctor, unused_port: int) -> None:
    began = time.monotonic()
    said = doctor("--nats-url", f"nats://u:secret@127.0.0.1:{unused_port}", "--json")
    assert time.monotonic() - began < 60
    assert said.code == 1
    found = said.about("nats.reachable")
    assert found["level"] == "danger"
    assert "pyoco-server up" in found["fix"]
    assert not said.document["ok"]
    assert "secret" not in said.out + said.err


def test_without_jetstream_it_says_so(doctor: Doctor, tmp_path: Path) -> None:
    with configured_nats(tmp_path, jetstream="off") as nats:
        said = doctor("--nats-url", nats.url, "--json")
    assert said.code == 1
    assert said.levels("jetstream.enabled") == {"danger"}
    assert said.levels("nats.reachable") == {"ok"}


def test_a_refused_login_says_where_the_password_goes(doctor: Doctor, tmp_path: Path) -> None:
    with configured_nats(tmp_path, "authorization { token: s3cret }") as nats:
        said = doctor("--nats-url", nats.url, "--json")
    assert said.code == 1
    assert "PYOCO_NATS_URL=nats://USER:PASSWORD@HOST" in said.about("nats.reachable")["fix"]


def test_an_empty_nats_is_no_danger_and_stays_empty(doctor: Doctor, own_nats_server: NatsServer) -> None:
    said = doctor("--nats-url", own_nats_server.url, "--json")
    assert said.code == 0
    assert said.levels("stream.present") == {"warning"}
    assert doctor("--nats-url", own_nats_server.url, "--json").levels("stream.present") == {"warning"}
    assert doctor("--nats-url", own_nats_server.url, "--strict").code == 1


def test_a_setting_that_does_not_parse_is_the_first_thing_to_mend(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYOCO_CONSUMER_MAX_DELIVER", "many")
    said = doctor("--json")
    assert said.code == 1
    (found,) = said.document["findings"]
    assert found["id"] == "settings.value"
    assert "PYOCO_CONSUMER_MAX_DELIVER" in found["what"]


def test_a_file_of_packs_that_is_not_there_is_a_danger(
    doctor: Doctor, own_nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYOCO_URL_PACK_CA_FILE", "no-such-ca.pem")
    said = doctor("--nats-url", own_nats_server.url, "--json")
    found = said.about("packs.files")
    assert (found["level"], found["about"]) == ("danger", "PYOCO_URL_PACK_CA_FILE")
    assert "no-such-ca.pem" in found["what"]


@pytest.mark.parametrize(
    "arguments", [["--server", "localhost"], ["--server", "ftp://x"], ["--nats-http", "http://[::1"], ["extra"]]
)
def test_a_wrong_command_line_is_refused_with_an_example(doctor: Doctor, arguments: list[str]) -> None:
    """FLOW-426"""
    said = doctor(*arguments)
    assert said.code == 1
    assert said.err.startswith("ERR-PYOCO-0018: ")
    assert "example: " in said.err
    assert said.out == ""


@pytest.mark.parametrize("option", ["--server", "--nats-http"])
@pytest.mark.parametrize(
    "url", ["ftp://anna:{}@h:1", "anna:{}@h:1", "http://anna:{}@[::1", "http://anna:a/{}@h:1", "http://anna:a@{}@h:0"]
)
def test_a_refused_address_is_shown_without_its_password(doctor: Doctor, option: str, url: str) -> None:
    """FLOW-531"""
    said = doctor(option, url.format("s3cret"))
    assert said.code == 1
    assert "***@" in said.err
    assert "s3cret" not in said.out + said.err


def test_a_monitoring_port_is_shown_without_its_password(
    doctor: Doctor, own_nats_server: NatsServer, unused_port: int
) -> None:
    """FLOW-531"""
    statuses = {"nobody": 404, "refuses": 401, "moved": 302, "no JetStream": 200, "no JSON": 200}
    for page, status in statuses.items():
        with a_site({"varz": status}, b"{}" if page == "no JetStream" else b"") as url:
            where = f"127.0.0.1:{unused_port}" if page == "nobody" else url.removeprefix("http://")
            for form in (["--json"], []):
                said = doctor("--nats-url", own_nats_server.url, "--nats-http", f"http://anna:s3cret@{where}/", *form)
                assert said.code == 0, (page, form)
                assert f"http://***@{where}" in said.out, (page, form)
                assert "s3cret" not in said.out + said.err, (page, form)


# A gateway


class _Page(BaseHTTPRequestHandler):
    statuses: ClassVar[dict[str, int]] = {}
    body: ClassVar[bytes] = b""

    def do_GET(self) -> None:
        self.send_response(self.statuses.get(self.path.partition("?")[0], 404))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *args: Any) -> None:
        """Not on stderr."""


@contextlib.contextmanager
def a_site(statuses: dict[str, int], body: bytes = b"") -> Iterator[str]:
    handler = type(
        "Page", (_Page,), {"statuses": {f"/{name}": status for name, status in statuses.items()}, "body": body}
    )
    with HTTPServer(("127.0.0.1", 0), handler) as http:
        serving = Thread(target=http.serve_forever, args=(0.02,))  # so often it looks whether it is to end
        serving.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            serving.join()


@pytest.mark.parametrize(
    ("statuses", "ready", "is_open"),
    [
        ({"health": 200, "ready": 200, "runs": 401}, "ok", {"ok"}),
        ({"health": 200, "ready": 503, "runs": 503}, "danger", {"note"}),
        ({"health": 500}, "danger", set()),
    ],
)
def test_the_gateway_is_looked_at_when_asked_for(
    statuses: dict[str, int], ready: str, is_open: set[str], doctor: Doctor, own_nats_server: NatsServer
) -> None:
    with a_site(statuses) as url:
        said = doctor("--nats-url", own_nats_server.url, "--server", url, "--json")
    assert said.levels("gateway.ready") == {ready}
    assert said.levels("gateway.open") == is_open
    assert said.code == (ready == "danger")


def test_a_gateway_whose_writes_find_no_room_is_told_apart(doctor: Doctor, own_nats_server: NatsServer) -> None:
    """ERR-PYOCO-0032. Nothing is written to find out: the gateway says so."""
    statuses = {"health": 200, "ready": 503, "runs": 200}
    for body, is_full in ((b'{"store": false}', True), (b'{"store": true}', False), (b"[]", False)):
        with a_site(statuses, body) as url:
            said = doctor("--nats-url", own_nats_server.url, "--server", url)
        assert said.code == 1
        assert ("the store of NATS refuses writes, there is no room" in said.out) == is_full


def test_a_gateway_that_is_not_there_is_a_danger(doctor: Doctor, own_nats_server: NatsServer, unused_port: int) -> None:
    said = doctor("--nats-url", own_nats_server.url, "--server", f"http://127.0.0.1:{unused_port}", "--json")
    assert (said.code, said.levels("gateway.ready")) == (1, {"danger"})


# How it speaks


def test_one_line_for_each_finding_the_worst_last_and_no_colours(doctor: Doctor, own_nats_server: NatsServer) -> None:
    on(own_nats_server.url, nothing)
    said = doctor("--nats-url", own_nats_server.url)
    *lines, blank, summary = said.out.splitlines()
    assert blank == ""
    levels = [line.split()[0] for line in lines]
    assert levels == sorted(levels, key=["ok", "note", "warning", "danger"].index)
    assert lines[-1].startswith("danger   keeper.alive")
    assert "FIX: pyoco-keeper" in lines[-1]
    assert "data may be lost or work may stop" in summary
    assert "\x1b" not in said.out
    assert said.err == ""


def test_what_a_stranger_wrote_cannot_move_the_cursor(doctor: Doctor, own_nats_server: NatsServer) -> None:
    wicked = a_worker(wheel_sync={"status": "error", "failed": [{"wheel_name": "x", "error": "\x1b[2J\r\n boo"}]})
    on(own_nats_server.url, announced(wicked))
    said = doctor("--nats-url", own_nats_server.url)
    assert "boo" in said.out
    assert "\x1b" not in said.out
    assert all(re.match(r"(ok|note|warning|danger) |$|data may be lost", line) for line in said.out.splitlines())


def test_on_a_terminal_there_are_colours_and_a_fix_in_one_piece(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environment = variables_without("PYOCO_", "NO_COLOR")
    process = begun(
        [SCRIPT, "doctor"],
        stdout=theirs,
        stderr=theirs,
        stdin=subprocess.DEVNULL,
        cwd=tmp_path,
        env={**environment, "PYOCO_WORKER_SLOTS": "x", "TERM": "xterm-256color", "COLUMNS": "60"},
    )
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # the end, on Linux
        while piece := os.read(ours, 4096):
            said += piece
    os.close(ours)
    assert process.wait(120) == 1
    assert b"\x1b[1;31mdanger" in said
    assert b"correct it, or remove it for the default\r\n" in said


def test_help_shows_examples_that_are_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    """FLOW-428"""
    assert outcome(server.cli, "pyoco-server", ["doctor", "--help"]) == 0
    examples = capsys.readouterr().out.partition("Example:\n")[2].split("\n")
    for words in (line.split() for line in examples if line):
        assert words[:2] == ["pyoco-server", "doctor"]
        server.cli.commands["doctor"].make_context("doctor", words[2:])


# This machine


def test_our_own_nats_is_read_from_what_up_wrote(tmp_path: Path) -> None:
    assert own_nats_of(tmp_path) is None
    for sync, seconds in (("always", 0.0), ("2m", 120.0), ("500ms", 0.5)):
        config = NatsBackendConfig(nats_sync=sync)
        EmbeddedNats(tmp_path, config, host="127.0.0.1", port=4300, http_port=8300).prepare()
        own = own_nats_of(tmp_path)
        assert own is not None
        assert (own.port, own.sync_seconds, own.monitor_url) == (4300, seconds, "http://127.0.0.1:8300")
    (tmp_path / "nats" / "nats.conf").write_text("# of somebody else\nport: 4222\n")
    assert own_nats_of(tmp_path) is None


def test_the_disk_of_a_folder_that_is_not_there_yet_is_that_of_its_parent(tmp_path: Path) -> None:
    (disk,) = disks_of([("data", tmp_path / "a" / "b", False)])
    assert getattr(disk, "path", "") == str(tmp_path)
    assert getattr(disk, "free_bytes", 0) > 0


# Everything together


def test_all_that_up_starts_is_well(doctor: Doctor, tmp_path: Path) -> None:
    """The doctor finds the NATS of the data folder by itself, and has nothing to say but that keys are off."""
    out = tmp_path / "out.txt"
    with out.open("wb") as stdout:
        up = begun(
            [SCRIPT, "up", "--with-examples", "--port", "0", "--slots", "1", "--data-dir", tmp_path / "data"],
            stdout=stdout,
            stderr=stdout,
            cwd=ROOT,
        )
    try:
        deadline = time.monotonic() + 200
        while "all processes are ready" not in out.read_text():
            assert up.poll() is None, out.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        url = re.search(r'"url": "([^"]+)"', out.read_text())
        assert url is not None
        arguments = ("--data-dir", str(tmp_path / "data"), "--server", url[1], "--json", "--strict")
        deadline = time.monotonic() + 90
        while (said := doctor(*arguments)).code and time.monotonic() < deadline:
            time.sleep(0.2)  # worker and keeper come a moment after the gateway
        bad = [each for each in said.document["findings"] if each["level"] != "ok"]
        assert (said.code, bad) == (0, [])
        assert said.levels("nats.sync") == said.levels("worker.alive") == said.levels("keeper.alive") == {"ok"}
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait(120)
