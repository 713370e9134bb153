"""Which server and which key `pyoco-client` uses: option, environment, config file, default. No calls are made."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyoco_server import config as settings
from pyoco_server.client.connection import Asked, Connection, resolve, shown_address
from pyoco_server.errors import UsageError
from support.client_commands import Client
from support.surroundings import own_variables

KEY = "pyoco_0123456789abcdef_averysecretpart"
FILE = f"""\
[default]
server = "http://127.0.0.1:9000"

[profiles.staging]
server = "https://pyoco.example.org/api/"
api_key = "{KEY}"
api_key_header = "X-Team-Key"
timeout_sec = 5
"""


class Home:
    """A config directory of this test's own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / "pyoco" / "client.toml"
        self.file.parent.mkdir(parents=True)

    def write(self, text: str, mode: int = 0o600) -> None:
        self.file.write_text(text)
        self.file.chmod(mode)

    def resolve(self, *asked: str | None, **variables: str) -> Connection:
        return resolve(Asked(*asked), {"PYOCO_DISCOVERY": "0", "XDG_CONFIG_HOME": str(self.directory), **variables})


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "config")


def test_without_anything_the_defaults_hold(home: Home) -> None:
    found = home.resolve()
    assert (found.server, found.api_key, found.api_key_header) == ("http://127.0.0.1:8000", None, "X-API-Key")
    assert (found.timeout_sec, found.profile, found.has_config_file) == (30.0, None, False)
    assert set(found.origins.values()) == {"default", "none"}


def test_option_wins_over_environment_over_profile(home: Home) -> None:
    home.write(FILE)
    assert home.resolve().server == "http://127.0.0.1:9000"
    assert home.resolve().origins["server"] == "profile default"
    variables = {"PYOCO_SERVER_URL": "http://env:1", "PYOCO_API_KEY": "env-key"}
    by_env = home.resolve(**variables)
    assert (by_env.server, by_env.api_key) == ("http://env:1", "env-key")
    assert (by_env.origins["server"], by_env.origins["api_key"]) == ("PYOCO_SERVER_URL", "PYOCO_API_KEY")
    by_option = home.resolve("http://option:1", "option-key", **variables)
    assert (by_option.server, by_option.api_key) == ("http://option:1", "option-key")
    assert (by_option.origins["server"], by_option.origins["api_key"]) == ("--server", "--api-key")


def test_a_profile_is_chosen_by_option_or_variable_and_stands_alone(home: Home) -> None:
    home.write(FILE)
    for found in (home.resolve(None, None, "staging"), home.resolve(PYOCO_PROFILE="staging")):
        assert (found.server, found.api_key) == ("https://pyoco.example.org/api/", KEY)
        assert (found.api_key_header, found.timeout_sec, found.profile) == ("X-Team-Key", 5.0, "staging")
    assert home.resolve(None, None, "default", PYOCO_PROFILE="staging").server == "http://127.0.0.1:9000"
    home.write('[default]\nserver = "http://a:1"\napi_key = "k"\n[profiles.bare]\ntimeout_sec = 1\n')
    bare = home.resolve(None, None, "bare")
    assert (bare.server, bare.api_key) == ("http://127.0.0.1:8000", None)


def test_a_key_of_the_file_goes_to_the_server_of_the_file_alone(home: Home) -> None:
    """FLOW-539: `--server` may lead anywhere"""
    home.write(FILE)
    same = home.resolve("https://PYOCO.example.org:443/api", None, "staging")
    assert same.api_key == KEY
    for other in ("http://pyoco.example.org/api", "https://pyoco.example.org:8443/api", "http://127.0.0.1:8000"):
        found = home.resolve(other, None, "staging")
        assert found.api_key is None
        assert "belongs to https://pyoco.example.org" in found.origins["api_key"]
    assert home.resolve("http://other:1", None, "staging", PYOCO_API_KEY="mine").api_key == "mine"
    home.write('[default]\napi_key = "local"\n')  # no server is the default server
    assert home.resolve().api_key == "local"
    assert home.resolve("http://127.0.0.1:8000/").api_key == "local"
    found = home.resolve("http://other:1")
    assert (found.api_key, found.origins["api_key"]) == (
        None,
        "none: the key of profile default belongs to http://127.0.0.1:8000",
    )
    assert home.resolve(PYOCO_SERVER_URL="http://other:1").api_key is None
    home.write('[default]\nserver = "http://[::1"\napi_key = "local"\n')
    assert home.resolve("http://other:1").api_key is None


@pytest.mark.parametrize(
    ("server", "shown"),
    [
        ("http://me:p@ss@host:1/team@x", "http://***@host:1/team@x"),
        ("https://host/team@x", "https://host/team@x"),
        ("http://me:p/ss@host", None),
        ("http://me:p?s#s@host", None),
        ("me:p@ss@host", None),
    ],
)
def test_no_password_of_an_address_is_shown(home: Home, server: str, shown: str | None) -> None:
    """FLOW-539"""
    assert shown_address(server) == shown or shown is None
    if shown is None:  # it is no address, and refused
        with pytest.raises(UsageError) as caught:
            home.resolve(server)
        assert "***@host' (--server)" in str(caught.value)
        assert "ss" not in str(caught.value).partition("is not the address")[0]


def test_an_empty_variable_counts_as_none(home: Home) -> None:
    found = home.resolve("", "", "", PYOCO_SERVER_URL="", PYOCO_API_KEY="", PYOCO_PROFILE="", PYOCO_CLIENT_CONFIG="")
    assert (found.server, found.api_key, found.profile) == ("http://127.0.0.1:8000", None, None)


def test_the_header_is_the_servers_own_setting(home: Home) -> None:
    """FLOW-261"""
    home.write(FILE)
    assert home.resolve(PYOCO_HTTP_API_KEY_HEADER="X-Mine").api_key_header == "X-Mine"
    with pytest.raises(UsageError, match="PYOCO_HTTP_API_KEY_HEADER"):
        home.resolve(PYOCO_HTTP_API_KEY_HEADER="two words")


def test_a_key_may_lie_in_a_file_of_its_own(home: Home) -> None:
    home.write('[default]\napi_key_file = "team.key"\n', 0o644)  # it holds no key: its mode does not matter
    key = home.file.parent / "team.key"
    with pytest.raises(UsageError, match=r"team\.key: No such file"):
        home.resolve()
    key.write_text(f"{KEY}\n")
    key.chmod(0o600)
    assert (home.resolve().api_key, home.resolve().warnings) == (KEY, ())
    key.chmod(0o640)
    assert home.resolve().warnings == (
        f"warning: other users of this machine may read {key}, which holds an API key: chmod 600 {key}",
    )
    key.write_bytes(b"\xff\xfesecret")
    with pytest.raises(UsageError) as caught:
        home.resolve()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_file_with_a_key_that_others_may_read_is_warned_of(home: Home, mode: int) -> None:
    """FLOW-539"""
    home.write(FILE, mode)
    (warning,) = home.resolve().warnings
    assert f"chmod 600 {home.file}" in warning
    assert KEY not in warning
    home.write("[default]\n", mode)
    assert home.resolve().warnings == ()


def test_another_file_may_be_named_and_has_to_be_there(home: Home, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    with pytest.raises(UsageError, match="PYOCO_CLIENT_CONFIG"):
        home.resolve(PYOCO_CLIENT_CONFIG=str(other))
    other.write_text('[default]\nserver = "http://other:1"\n')
    home.write(FILE)
    found = home.resolve(PYOCO_CLIENT_CONFIG=str(other))
    assert (found.server, found.config_file) == ("http://other:1", other)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[default", "is not TOML"),
        ("server = 'http://x'", "[server] is not known"),
        ("[staging]\nserver = 'http://x'", "[profiles.staging]"),
        ("[default]\nsever = 'http://x'", "did you mean server?"),
        ("[default]\nfrobnicate = 1", "known: server"),
        ("[default]\nserver = 1", "must be text"),
        ("[default]\ntimeout_sec = '5'", "must be a number"),
        ("[default]\ntimeout_sec = true", "must be a number"),
        ("[default]\ntimeout_sec = 0", "above 0"),
        ("[default]\ntimeout_sec = nan", "above 0"),
        ("[default]\napi_key = 'a'\napi_key_file = 'b'", "leave one"),
        ("[default]\napi_key = 'two words'", "visible ASCII"),
        ("[default]\napi_key_header = 'a:b'", "header"),
        ("[default]\nserver = 'nowhere'", "address"),
        ("default = 1", "must be a table"),
        ("profiles = 1", "must be tables"),
        ("[profiles.default]", "write [default]"),
        ("#" * 1_100_000, "bytes"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(home: Home, text: str, told: str) -> None:
    """A silent default would hide a typo."""
    home.write(text)
    with pytest.raises(UsageError) as caught:
        home.resolve()
    assert told in str(caught.value)


def test_a_file_that_is_none_is_told_of(home: Home) -> None:
    home.file.mkdir()
    with pytest.raises(UsageError, match="cannot read"):
        home.resolve()


def test_a_home_that_is_not_there_is_told_of_where_it_matters(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLOW-426, FLOW-429"""
    with pytest.raises(UsageError, match="PYOCO_CLIENT_CONFIG names ~nosuch/x"):
        home.resolve(PYOCO_CLIENT_CONFIG="~nosuch/x")
    home.write('[default]\napi_key_file = "~nosuch/key"\n')
    with pytest.raises(UsageError, match="names ~nosuch/key"):
        home.resolve()
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # a container's user, perhaps
    monkeypatch.chdir(home.directory)
    (home.directory / "~" / ".config" / "pyoco").mkdir(parents=True)
    (home.directory / "~" / ".config" / "pyoco" / "client.toml").write_text('[default]\nserver = "http://evil:1"\n')
    found = resolve(Asked(), {})
    assert (found.server, found.has_config_file) == ("http://127.0.0.1:8000", False)


def test_an_unknown_profile_is_told_with_those_there_are(home: Home) -> None:
    with pytest.raises(UsageError, match="no file"):
        home.resolve(None, None, "staging")
    home.write(FILE)
    with pytest.raises(UsageError, match="there: default, staging"):
        home.resolve(None, None, "production")


def test_the_command_shows_what_is_in_force_and_never_the_key(
    home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLOW-539"""
    client = Client(capsys, monkeypatch)
    for name in own_variables():
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home.directory))
    home.write(FILE)
    ended = client("--profile", "staging", "config")
    assert ended.result == {
        "config_file": str(home.file),
        "config_file_found": True,
        "profile": "staging",
        "server": {"value": "https://pyoco.example.org/api/", "from": "profile staging"},
        "api_key": {"value": "pyoco_0123456789abcdef_***", "from": "profile staging"},
        "api_key_header": {"value": "X-Team-Key", "from": "profile staging"},
        "timeout_sec": {"value": 5.0, "from": "profile staging"},
    }
    monkeypatch.setenv("PYOCO_API_KEY", "another-secret")
    monkeypatch.setenv("PYOCO_SERVER_URL", "http://me:password@x:1")
    ended = client("config")
    assert ended.result["api_key"] == {"value": "***", "from": "PYOCO_API_KEY"}
    assert ended.result["server"]["value"] == "http://***@x:1"
    home.write(FILE, 0o644)
    assert "chmod 600" in client("config").err


def test_nothing_shows_the_key_by_accident(home: Home) -> None:
    home.write(FILE)
    assert KEY not in repr(home.resolve(None, None, "staging"))
    assert KEY not in repr(Asked(None, KEY))


def test_the_variables_are_known_to_the_guard_against_typos() -> None:
    for name in ("PYOCO_PROFILE", "PYOCO_CLIENT_CONFIG", "PYOCO_SERVER_URL", "PYOCO_API_KEY"):
        assert settings.unknown_variables({name: "x"}) == {}
    assert settings.unknown_variables({"PYOCO_CLIENT_CONFG": "x"}) == {"PYOCO_CLIENT_CONFG": "PYOCO_CLIENT_CONFIG"}
