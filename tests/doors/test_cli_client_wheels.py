"""`pyoco-client` and wheels: up, down, listed and deleted (FLOW-441 to FLOW-444)."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.client_commands import Client, terminal
from support.servers import unique
from support.sites import Site
from support.wheels import write_wheel


@pytest.fixture
def client(site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("PYOCO_SERVER_URL", site.url)
    monkeypatch.setenv("PYOCO_CLIENT_CONFIG", os.devnull)
    yield Client(capsys, monkeypatch)
    site.rest()  # before pytest closes what the command wrote to


def test_a_wheel_goes_up_and_comes_down_the_same(client: Client, tmp_path: Path) -> None:
    """FLOW-441 to FLOW-444"""
    wheel = write_wheel(tmp_path, unique("my"), "1.0")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    made = client("wheel-upload", "--wheel-file", str(wheel), "--tags", "gpu, nightly").result
    assert (made["name"], made["sha256_hex"], made["tags"]) == (wheel.name, digest, ["gpu", "nightly"])
    assert wheel.name in [each["name"] for each in client("wheels").result]
    assert f"\n{wheel.name}  {made['size_bytes']}" in client("wheels", "--output", "table").out
    target = tmp_path / "downloads"
    target.mkdir()
    fetched = client("wheel-download", wheel.name, "--to", str(target)).result
    assert fetched["path"] == str(target / wheel.name)
    assert (target / wheel.name).read_bytes() == wheel.read_bytes()
    assert [path.name for path in target.iterdir()] == [wheel.name]
    assert client("wheel-delete", "--wheel-name", wheel.name).result == {"name": wheel.name, "deleted": True}
    events = client("wheel-history", "--wheel-name", wheel.name).result
    assert [event["action"] for event in events] == ["delete", "upload"]
    assert len(client("wheel-history", "--wheel-name", wheel.name, "--action", "upload").result) == 1
    table = client("wheel-history", "--wheel-name", wheel.name, "--output", "table").out.splitlines()
    assert [line.split()[1] for line in table] == ["action", "delete", "upload"]


def test_the_server_says_why_a_wheel_is_refused(client: Client, tmp_path: Path) -> None:
    """FLOW-158, FLOW-159, FLOW-427"""
    wheel = write_wheel(tmp_path, unique("my"), "1.0")
    assert client("wheel-upload", str(wheel), "--no-replace").code == 0
    again = client("wheel-upload", str(wheel))
    assert (again.code, again.out) == (1, "")
    assert again.err.startswith("HTTP 409 ERR-PYOCO-0022: ")
    for command in ("wheel-download", "wheel-delete"):
        missing = client(command, "nobody-1.0-py3-none-any.whl", *(["--to", str(tmp_path)] * (command[6:8] == "do")))
        assert (missing.code, missing.out) == (1, "")
        assert missing.err.startswith("HTTP 404 ERR-PYOCO-0023: ")
    odd = tmp_path / "odd.whl"
    odd.write_bytes(b"x")
    assert client("wheel-upload", str(odd)).err.startswith("HTTP 422 ERR-PYOCO-0002: ")


def test_a_file_that_is_there_is_not_written_over_unless_told(client: Client, tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, unique("my"), "1.0")
    assert client("wheel-upload", str(wheel)).code == 0
    target = tmp_path / "mine.whl"
    target.write_text("precious")
    refused = client("wheel-download", wheel.name, "--to", str(target))
    assert (refused.code, refused.out, target.read_text()) == (1, "", "precious")
    assert "--force" in refused.err
    assert client("wheel-download", wheel.name, "--to", str(target), "--force").code == 0
    assert target.read_bytes() == wheel.read_bytes()


def test_a_person_sees_a_bar_and_a_program_only_the_result(site: Site, tmp_path: Path) -> None:
    """FLOW-430"""
    wheel = write_wheel(tmp_path, unique("my"), "1.0", pad_bytes=200_000)
    out = tmp_path / "out"
    with out.open("wb") as stdout, terminal(site.url, "wheel-upload", str(wheel), stdout=stdout) as screen:
        assert screen.left() == 0
    assert "upload" in screen.sent
    assert json.loads(out.read_text())["name"] == wheel.name
