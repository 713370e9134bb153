"""Files that the settings of packs name: processes that execute packs refuse a bad one before they start anything."""

from __future__ import annotations

from pathlib import Path
from types import CoroutineType
from typing import Any

import pytest
import uvloop

from pyoco_server import logs
from pyoco_server.config import PricedConfig
from pyoco_server.config.packs import PackConfig
from pyoco_server.doors.cli import server, worker
from pyoco_server.doors.cli.shell import outcome
from pyoco_server.wiring.offer import packs_here
from pyoco_server.wiring.packs import check_files
from support.priced.url_sites import Authority
from support.surroundings import own_variables

#: A place where nothing can be: a command that gets so far ends there.
NOWHERE = "/dev/null/x"

#: The variable, what is in the file (None: there is none), and the message.
BAD = [
    ("PYOCO_URL_PACK_CA_FILE", None, "No such file or directory; example: PYOCO_URL_PACK_CA_FILE=extra-ca.pem"),
    ("PYOCO_URL_PACK_CA_FILE", b"no certificate", "it is no PEM file of certificates; example: "),
    ("PYOCO_OCR_PROFILES_FILE", None, "cannot be read: No such file or directory"),
    ("PYOCO_OCR_PROFILES_FILE", b"version: [", "is not YAML: line 2"),
    ("PYOCO_OCR_PROFILES_FILE", b"version: 1\nprofiles: {}\n", "P1"),
]
bad_files = pytest.mark.parametrize(("variable", "content", "told"), BAD)


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a setting of ours, and without a log of its own."""
    for name in own_variables():
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logs, "configure_logging", lambda *service, **name: None)


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a worker would have started."""
    started: list[str] = []

    def run(work: CoroutineType[Any, Any, int]) -> int:
        started.append(work.__name__)
        work.close()
        return 0

    monkeypatch.setattr(uvloop, "run", run)
    return started


def set_bad(monkeypatch: pytest.MonkeyPatch, folder: Path, variable: str, content: bytes | None) -> str:
    file = folder / "file"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv(variable, str(file))
    return str(file)


@bad_files
def test_a_worker_refuses_a_bad_file_before_anything_else(
    variable: str,
    content: bytes | None,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    starts: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = set_bad(monkeypatch, tmp_path, variable, content)
    for _ in range(2):
        assert outcome(worker.cli, "pyoco-worker", []) == 1
        said = capsys.readouterr().err
        assert said.startswith(f"ERR-PYOCO-0018: {variable}: ")
        assert file in said
        assert told in said
        assert not {"Traceback", "SettingError"} & set(said.replace("(", " ").split())
    assert starts == []


@bad_files
def test_up_refuses_a_bad_file_unless_it_starts_no_worker(
    variable: str,
    content: bytes | None,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_bad(monkeypatch, tmp_path, variable, content)
    assert outcome(server.cli, "pyoco-server", ["up", "--data-dir", NOWHERE]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"ERR-PYOCO-0018: {variable}: ")
    assert told in said
    assert outcome(server.cli, "pyoco-server", ["up", "--no-worker", "--data-dir", NOWHERE]) == 1
    assert NOWHERE in capsys.readouterr().err


def test_up_reads_the_settings_of_priced_runs_before_it_starts_anything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYOCO_PACKS", ",")
    assert outcome(server.cli, "pyoco-server", ["up", "--no-worker", "--data-dir", NOWHERE]) == 1
    assert "PYOCO_PACKS=',' names no pack; example: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "without", [{}, {"PYOCO_PACKS": "decision"}, {"PYOCO_PRICED_ENABLED": "0"}], ids=["good", "left out", "off"]
)
def test_a_file_that_is_good_or_that_nobody_reads_keeps_no_worker_from_its_work(
    without: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: list[str]
) -> None:
    file = tmp_path / "missing.pem" if without else Authority(tmp_path).ca_file
    for variable, value in {**without, "PYOCO_URL_PACK_CA_FILE": str(file)}.items():
        monkeypatch.setenv(variable, value)
    assert outcome(worker.cli, "pyoco-worker", []) == 0
    assert starts == ["_work"]


def test_the_doctor_is_told_of_all_bad_files() -> None:
    priced = PricedConfig(pack=PackConfig(url_pack_ca_file="no.pem", ocr_profiles_file="no.yaml"))
    told = packs_here(priced).bad_files
    assert [each.partition(":")[0] for each in told] == ["PYOCO_URL_PACK_CA_FILE", "PYOCO_OCR_PROFILES_FILE"]
    assert packs_here(PricedConfig()).bad_files == ()
    check_files(PricedConfig())
