"""The dotenv file: what a line means, which file is read, and what stops the process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.config import NatsBackendConfig, read_dotenv, settings
from pyoco_server.errors import SettingError


def test_without_a_mapping_the_file_also_fills_the_process_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLOW-519, FLOW-520: the engine and child processes read it there."""
    variables = [setting.variable for setting in settings(NatsBackendConfig) if setting.has_variable]
    for name in [*variables, "PYOCO_LOAD_DOTENV", "PYOCO_ENV_FILE", "PYOCO_CUTE"]:
        monkeypatch.setenv(name, "")  # so that whatever from_env sets is undone
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYOCO_DEFAULT_TAG", "kept")
    (tmp_path / ".env").write_text("PYOCO_DEFAULT_TAG=file\nPYOCO_CUTE=1\nPYOCO_ENV_FILE=other.env\n")

    assert NatsBackendConfig.from_env().default_tag == "kept"
    assert os.environ["PYOCO_CUTE"] == "1"
    assert "PYOCO_ENV_FILE" not in os.environ


@pytest.mark.parametrize(("load", "tag"), [("1", "file"), ("true", "file"), ("0", "default"), ("off", "default")])
def test_loading_can_be_turned_off(tmp_path: Path, load: str, tag: str) -> None:
    """FLOW-511, FLOW-519"""
    file = tmp_path / ".env"
    file.write_text("PYOCO_DEFAULT_TAG=file")
    environ = {"PYOCO_LOAD_DOTENV": load, "PYOCO_ENV_FILE": str(file)}
    assert NatsBackendConfig.from_env(environ).default_tag == tag


def test_a_missing_file_is_no_error(tmp_path: Path) -> None:
    """FLOW-519"""
    environ = {"PYOCO_ENV_FILE": str(tmp_path / "nowhere" / ".env")}
    assert NatsBackendConfig.from_env(environ) == NatsBackendConfig()


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=b", "b"),
        ("  export A = b  ", "b"),
        ("A=b\r", "b"),
        ("A=", ""),
        ("A=# nothing", ""),
        ("A=b # comment", "b"),
        ("A=b#c", "b#c"),
        ("A=b=c", "b=c"),
        ("A=it's", "it's"),
        ("A='b # c' # d", "b # c"),
        ("A='b\\n$HOME'", "b\\n$HOME"),
        (r'A="b\n\"c\" \$d \\ \q"', 'b\n"c" $d \\ \\q'),
        ("A=$HOME", "$HOME"),
        ("A=1\nA=2", "2"),
        ("\ufeffA=日本", "日本"),
        ("# A=1\n\n   # x\nA=3", "3"),
    ],
)
def test_a_dotenv_line_means_what_it_says(tmp_path: Path, line: str, value: str) -> None:
    """FLOW-512"""
    file = tmp_path / ".env"
    file.write_bytes(line.encode())
    assert read_dotenv(file) == {"A": value}


@pytest.mark.parametrize(
    "line", ["hush", "=hush", "A B=hush", "1A=hush", "A='hush", 'A="hush', "A='hush'x", "Ä=hush", "A=hush\0"]
)
def test_a_broken_dotenv_line_stops_with_file_and_line_but_not_its_text(tmp_path: Path, line: str) -> None:
    """FLOW-519"""
    file = tmp_path / ".env"
    file.write_text(f"GOOD=1\n# fine\n{line}\n", encoding="utf-8")
    with pytest.raises(SettingError, match=r"\.env, line 3: ") as caught:
        NatsBackendConfig.from_env({"PYOCO_ENV_FILE": str(file)})
    assert "hush" not in str(caught.value)


def test_an_unreadable_dotenv_file_stops_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "latin.env").write_bytes(b"A=1\nB=\xe9\n")
    with pytest.raises(SettingError, match=r"latin\.env, line 2: not UTF-8"):
        read_dotenv(tmp_path / "latin.env")
    with pytest.raises(SettingError, match="PYOCO_ENV_FILE"):
        read_dotenv(tmp_path)


@given(value=st.text(st.characters(blacklist_characters="\0\r\n", blacklist_categories=["Cs"])))
def test_any_line_of_text_survives_double_quotes(tmp_path_factory: pytest.TempPathFactory, value: str) -> None:
    file = tmp_path_factory.getbasetemp() / "quoted.env"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    file.write_text(f'A="{escaped}" # comment\n', encoding="utf-8")
    assert read_dotenv(file) == {"A": value}
