"""How a process gets in to NATS: certificates, passwords in files, and what it hears when it does not."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import NotStored, SettingError, Unavailable
from pyoco_server.ports.nats.access import Access, access_of
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.link import Link, NotPermitted, Patience, open_link
from support.configured_nats import configured_nats
from support.guarded_nats import tls_block
from support.nats_clients import network_client
from support.priced.url_sites import Authority
from support.waiting import eventually

_SECRET = "a-secret-nobody-may-see"
_CREDS = (
    "-----BEGIN NATS USER JWT-----\na.b.%s\n------END NATS USER JWT------\n-----BEGIN USER NKEY SEED-----\n%s\n-----\n"
)
_USERS = """
authorization { users: [
  { user: "worker", password: "%s", permissions { publish { allow: ["$JS.API.STREAM.INFO.>"] }
    subscribe { allow: ["_INBOX_worker.>"] } } }
  { user: "all", password: "%s" }
] }
"""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text(_SECRET + "\n")
    return file


def _nkeys() -> ModuleType:
    """In the place of the package, which not every machine has. It signs so that one sees with what."""

    class _Pair:
        def __init__(self, seed: bytes) -> None:
            if not seed.startswith(b"SU"):
                raise ValueError("no seed")
            self._seed = bytes(seed)

        def sign(self, nonce: bytes) -> bytes:
            return self._seed + b" " + nonce

    module: Any = ModuleType("nkeys")
    module.NkeysError, module.from_seed = type("NkeysError", (Exception,), {}), _Pair
    return module  # type: ignore[no-any-return]


@contextlib.asynccontextmanager
async def linked(
    access: Access, connect_seconds: float = 60.0, patience: Patience | None = None
) -> AsyncIterator[Link]:
    link = await open_link(access, "tests", patience, connect_seconds)
    try:
        yield link
    finally:
        await link.close()


async def refusal(access: Access) -> str:
    """What somebody is told who is not let in; and that takes seconds, not minutes."""
    for seconds in (1.5, 6.0, 24.0):  # a busy machine may be too slow to be refused in time
        began = time.monotonic()
        with pytest.raises(NotStored) as caught:
            async with linked(access, seconds):
                raise AssertionError("it was let in")
        assert time.monotonic() - began < seconds + 60
        if re.search(r"answers at \S+: ", str(caught.value)):  # and why
            break
    return str(caught.value)


class TestFiles:
    """What is wrong with a file is said before anybody is dialled: nobody listens at these addresses."""

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"nats_user": "a"}, "PYOCO_NATS_USER and PYOCO_NATS_PASSWORD_FILE go together"),
            ({"nats_password_file": "{good}"}, "PYOCO_NATS_USER and PYOCO_NATS_PASSWORD_FILE go together"),
            ({"nats_tls_cert": "{good}"}, "PYOCO_NATS_TLS_CERT and PYOCO_NATS_TLS_KEY go together"),
            ({"nats_user": "a", "nats_password_file": "{good}", "nats_creds": "{good}"}, "both say who this is"),
            ({"nats_user": "a", "nats_password_file": "{missing}"}, "PYOCO_NATS_PASSWORD_FILE='{missing}' cannot be"),
            ({"nats_user": "a", "nats_password_file": "{empty}"}, "PYOCO_NATS_PASSWORD_FILE='{empty}' must hold one"),
            ({"nats_user": "a", "nats_password_file": "{two}"}, "must hold one line"),
            ({"nats_user": "a", "nats_password_file": "{bytes}"}, "is not text"),
            ({"nats_user": "a", "nats_password_file": "{folder}"}, "Is a directory"),
            ({"nats_user": "a", "nats_password_file": "{big}"}, "has more than 65536 bytes"),
            ({"nats_creds": "{missing}"}, "PYOCO_NATS_CREDS='{missing}' cannot be read: No such file"),
            ({"nats_creds": "{good}"}, "PYOCO_NATS_CREDS='{good}' is not a credentials file"),
            ({"nats_tls_ca": "{missing}"}, "PYOCO_NATS_TLS_CA='{missing}' cannot be read: No such file"),
            ({"nats_tls_ca": "{good}"}, "PYOCO_NATS_TLS_CA='{good}' holds no certificates"),
            ({"nats_tls_ca": "{huge}"}, "has more than 1048576 bytes"),
            (
                {"nats_tls_ca": "{chain}", "nats_url": "nats://a,ws://u:hidden@b"},
                "PYOCO_NATS_URL has an address with ws",
            ),
            ({"nats_tls_cert": "{missing}", "nats_tls_key": "{good}"}, "PYOCO_NATS_TLS_CERT='{missing}' cannot be"),
            ({"nats_tls_cert": "{chain}", "nats_tls_key": "{other}"}, "in PYOCO_NATS_TLS_CERT: KEY_VALUES_MISMATCH"),
            ({"nats_tls_cert": "{good}", "nats_tls_key": "{good}"}, "is not the key of the certificate"),
        ],
    )
    async def test_a_bad_file_names_its_setting(
        self, authority: Authority, tmp_path: Path, settings: dict[str, str], words: str
    ) -> None:
        paths = {
            name: str(tmp_path / name) for name in ("good", "missing", "empty", "two", "bytes", "folder", "big", "huge")
        }
        paths |= {"chain": str(authority.chain("a")), "other": str(authority.chain("b"))}
        (tmp_path / "good").write_text(_SECRET)
        (tmp_path / "empty").write_text("\n")
        (tmp_path / "two").write_text(f"{_SECRET}\n{_SECRET}\n")
        (tmp_path / "bytes").write_bytes(b"\xff\xfe")
        (tmp_path / "big").write_bytes(b"x" * 70_000)
        (tmp_path / "huge").write_bytes(b"x" * 1_100_000)
        (tmp_path / "folder").mkdir()
        given = {"nats_url": "nats://127.0.0.1:1"}
        given |= {name: value.format(**paths) for name, value in settings.items()}
        config = NatsBackendConfig.from_env({"PYOCO_LOAD_DOTENV": "0"}, **given)
        with pytest.raises(SettingError) as caught:
            await open_link(access_of(config), "tests")
        assert words.format(**paths) in str(caught.value)
        assert _SECRET not in str(caught.value)
        assert "hidden" not in str(caught.value)

    def test_a_bundle_of_a_whole_machine_is_taken(self, authority: Authority, tmp_path: Path) -> None:
        bundle = tmp_path / "bundle.pem"
        one = authority.ca_file.read_text()
        bundle.write_text(one * (300_000 // len(one)))
        assert Access(url="tls://127.0.0.1:1", tls_ca=str(bundle)).context() is not None

    def test_a_credentials_file_needs_a_package_and_says_which(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "worker.creds"
        file.write_text(_CREDS % ("c", "SUA"))
        monkeypatch.setitem(sys.modules, "nkeys", None)
        with pytest.raises(SettingError, match=r"PYOCO_NATS_CREDS .*pip install 'pyoco-server\[creds\]'"):
            Access(url="nats://127.0.0.1:1", creds=str(file)).options()

    def test_credentials_are_read_again_and_the_last_good_ones_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Whatever lies there at a reconnect: nothing, half of it, a seed that is none. And it takes no time."""
        monkeypatch.setitem(sys.modules, "nkeys", _nkeys())
        file = tmp_path / "worker.creds"
        file.write_text(_CREDS % ("first", "SUFIRST"))
        options = Access(url="nats://127.0.0.1:1", creds=str(file)).options()
        sign, jwt = options["signature_cb"], options["user_jwt_cb"]
        for broken in ("", (_CREDS % ("half", "SUHALF"))[:60], _CREDS % ("other", "NONE")):
            file.write_text(broken)
            assert (base64.b64decode(sign("n")), jwt()) == (b"SUFIRST n", b"a.b.first")
        file.unlink()
        assert (base64.b64decode(sign("n")), jwt()) == (b"SUFIRST n", b"a.b.first")
        file.write_text((_CREDS % ("second", "SUSECOND")).replace("\n", "\r\n"))
        assert (base64.b64decode(sign("n")), jwt()) == (b"SUSECOND n", b"a.b.second")
        assert caplog.text.count("cannot reload the credentials") == 4
        assert "SU" not in caplog.text + repr(options)

    async def test_credentials_are_told_to_a_server_that_asks_for_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "nkeys", _nkeys())
        file = tmp_path / "worker.creds"
        file.write_text(_CREDS % ("c", "SUMINE"))
        heard = bytearray()

        async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(
                b'INFO {"server_id":"x","version":"2.15.1","max_payload":99,"auth_required":true,"nonce":"n1"}\r\n'
            )
            heard.extend(await reader.readline())
            writer.write(b"-ERR 'Authorization Violation'\r\n")
            writer.close()

        server = await asyncio.start_server(pretend, "127.0.0.1", 0)
        async with server:
            await refusal(Access(url=f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}", creds=str(file)))
        assert b'"jwt": "a.b.c"' in heard
        assert base64.b64encode(b"SUMINE n1") in heard
        assert b'"SUMINE' not in heard

    def test_a_password_is_shown_by_nobody(self, password_file: Path) -> None:
        access = Access(url="nats://127.0.0.1:1", user="a", password_file=str(password_file))
        assert _SECRET not in repr(access)
        assert _SECRET not in repr(access.options())


class TestTls:
    async def test_the_authority_that_is_named_is_trusted(self, authority: Authority, tmp_path: Path) -> None:
        chain = authority.chain("127.0.0.1")
        with configured_nats(tmp_path, tls_block(authority, chain)) as server:
            for scheme in ("tls", "nats"):
                access = Access(url=f"{scheme}://127.0.0.1:{server.port}", tls_ca=str(authority.ca_file))
                async with linked(access) as link:
                    assert await link.api("INFO", {}, dict[str, Any])

    @pytest.mark.parametrize(
        ("chain", "words"),
        [
            (lambda _, other: other.chain("127.0.0.1"), "certificate signature failure"),
            (lambda own, _: own.chain("127.0.0.1", hours=-1), "certificate has expired"),
            (lambda own, _: own.chain("elsewhere.example"), "IP address mismatch"),
        ],
        ids=["another authority", "expired", "another name"],
    )
    async def test_a_server_that_shows_the_wrong_certificate_is_told_of_at_once(
        self, authority: Authority, tmp_path: Path, chain: Callable[[Authority, Authority], Path], words: str
    ) -> None:
        folder = tmp_path / "other"
        folder.mkdir()
        with configured_nats(tmp_path, tls_block(authority, chain(authority, Authority(folder)))) as server:
            said = await refusal(Access(url=f"tls://127.0.0.1:{server.port}", tls_ca=str(authority.ca_file)))
        assert "its certificate is refused" in said
        assert words in said

    async def test_a_server_may_ask_for_a_certificate_of_ours(self, authority: Authority, tmp_path: Path) -> None:
        """Without one, with an expired one, and with a good one."""
        block = tls_block(authority, authority.chain("127.0.0.1"), mutual=True)
        with configured_nats(tmp_path, block) as server:
            url, ca = f"tls://127.0.0.1:{server.port}", str(authority.ca_file)
            said = await refusal(Access(url=url, tls_ca=ca))
            assert "certificate required" in said or "bad certificate" in said
            expired = str(authority.chain("worker", hours=-1))
            said = await refusal(Access(url=url, tls_ca=ca, tls_cert=expired, tls_key=expired))
            assert "TLS failed" in said
            assert "expired" in said or "bad certificate" in said
            own = str(authority.chain("worker"))
            async with linked(Access(url=url, tls_ca=ca, tls_cert=own, tls_key=own)) as link:
                assert await link.api("INFO", {}, dict[str, Any])

    async def test_a_server_without_tls_is_not_told_the_password(
        self, authority: Authority, password_file: Path
    ) -> None:
        heard = bytearray()

        async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b'INFO {"server_id":"x","version":"2.15.1","max_payload":1048576,"auth_required":true}\r\n')
            heard.extend(await reader.read(1000))
            writer.close()

        server = await asyncio.start_server(pretend, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            own = {"user": "worker", "password_file": str(password_file), "tls_ca": str(authority.ca_file)}
            for scheme, asks in (("nats", "the settings ask for tls"), ("tls", "the address asks for tls")):
                assert asks in await refusal(Access(url=f"{scheme}://127.0.0.1:{port}", **own))
        assert not heard

    async def test_a_server_that_has_frozen_is_left_at_once(self, authority: Authority, tmp_path: Path) -> None:
        """TLS is closed by both sides; a side that is gone must not keep us from the next node."""
        with configured_nats(tmp_path, tls_block(authority, authority.chain("127.0.0.1"))) as server:
            async with linked(Access(url=f"tls://127.0.0.1:{server.port}", tls_ca=str(authority.ca_file))) as link:
                server.freeze()
                await link.nc.force_reconnect()
                # On a busy machine, four times as long: still less than the half minute of a TLS that waits.
                await eventually(lambda: link.connection == 1, seconds=6.0)

    async def test_new_certificates_need_no_new_process(self, authority: Authority, tmp_path: Path) -> None:
        """The authority itself is replaced, and the server with it."""
        chain, ca = tmp_path / "server.pem", tmp_path / "trusted.pem"
        chain.write_bytes(authority.chain("127.0.0.1").read_bytes())
        ca.write_bytes(authority.ca_file.read_bytes())
        with configured_nats(tmp_path, tls_block(authority, chain)) as server:
            async with linked(Access(url=f"tls://127.0.0.1:{server.port}", tls_ca=str(ca))) as link:
                folder = tmp_path / "other"
                folder.mkdir()
                other = Authority(folder)
                chain.write_bytes(other.chain("127.0.0.1").read_bytes())
                ca.write_bytes(other.ca_file.read_bytes())
                server.process.send_signal(signal.SIGHUP)
                await eventually(lambda: "Reloaded server configuration" in (tmp_path / "log.txt").read_text())
                await link.nc.force_reconnect()
                await eventually(lambda: network_client(link).stats["reconnects"] == 1 and link.is_up)
                assert await link.api("INFO", {}, dict[str, Any])

    async def test_certificates_that_come_after_the_connection_was_lost_are_read(
        self, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The server is first, and for a while there is nothing that can be read."""
        chain, ca = tmp_path / "server.pem", tmp_path / "trusted.pem"
        chain.write_bytes(authority.chain("127.0.0.1").read_bytes())
        ca.write_bytes(authority.ca_file.read_bytes())
        with configured_nats(tmp_path, tls_block(authority, chain)) as server:
            async with linked(Access(url=f"tls://127.0.0.1:{server.port}", tls_ca=str(ca))) as link:
                (tmp_path / "other").mkdir()
                other = Authority(tmp_path / "other")
                chain.write_bytes(other.chain("127.0.0.1").read_bytes())
                server.process.send_signal(signal.SIGHUP)
                await eventually(lambda: "Reloaded server configuration" in (tmp_path / "log.txt").read_text())
                ca.write_bytes(b"")
                await link.nc.force_reconnect()
                await eventually(lambda: "its certificate is refused" in link._why_not_in)
                assert caplog.text.count("cannot reload the certificates") == 1
                ca.write_bytes(other.ca_file.read_bytes())
                await eventually(lambda: network_client(link).stats["reconnects"] == 1 and link.is_up)
                assert await link.api("INFO", {}, dict[str, Any])


class TestUsers:
    @pytest.fixture
    def users(self, tmp_path: Path) -> str:
        return _USERS % (_SECRET, _SECRET)

    async def test_a_wrong_password_is_told_of(
        self, tmp_path: Path, users: str, password_file: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        password_file.write_text("another")
        with caplog.at_level(logging.DEBUG), configured_nats(tmp_path, users) as server:
            said = await refusal(Access(url=server.url, user="worker", password_file=str(password_file)))
        assert "authorization violation" in said.lower()
        assert "another" not in caplog.text + said

    async def test_a_new_password_needs_no_new_process(self, tmp_path: Path, users: str, password_file: Path) -> None:
        """The file first, then NATS, which sends everybody away whose password is not theirs any more."""
        own = Access(url="", user="all", password_file=str(password_file))
        with configured_nats(tmp_path, users) as server:
            async with linked(Access(url=server.url, user=own.user, password_file=own.password_file)) as link:
                password_file.write_text("a-new-one\n")
                conf = tmp_path / "nats.conf"
                conf.write_text(conf.read_text().replace(_SECRET, "a-new-one"))
                os.kill(server.process.pid, signal.SIGHUP)
                await eventually(lambda: network_client(link).stats["reconnects"] > 0 and link.is_up)
                assert await link.api("INFO", {}, dict[str, Any])

    async def test_an_inbox_that_is_not_its_own_is_told_of_at_once(
        self, tmp_path: Path, users: str, password_file: Path
    ) -> None:
        with configured_nats(tmp_path, users) as server:
            access = Access(url=server.url, user="worker", password_file=str(password_file))
            with pytest.raises(NotPermitted, match="PYOCO_NATS_INBOX_PREFIX"):
                await open_link(access, "tests")

    async def test_who_was_made_deaf_by_mistake_hears_again_once_that_is_mended(
        self, tmp_path: Path, users: str, password_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """NATS takes the inbox away when its configuration is read again, and does not give it back."""
        monkeypatch.setattr("pyoco_server.ports.nats.violations._REFUSED_SECONDS", 0.3)
        conf = tmp_path / "nats.conf"
        with configured_nats(tmp_path, users) as server:
            access = Access(
                url=server.url, user="worker", password_file=str(password_file), inbox_prefix="_INBOX_worker"
            )
            async with linked(access) as link:
                good = conf.read_text()
                conf.write_text(good.replace("_INBOX_worker.>", "_INBOX_other.>"))
                os.kill(server.process.pid, signal.SIGHUP)
                await eventually(lambda: link._violations.inbox is not None)
                with pytest.raises(NotPermitted):
                    await link.ask("$JS.API.STREAM.INFO.X", b"")
                conf.write_text(good)
                os.kill(server.process.pid, signal.SIGHUP)
                log = tmp_path / "log.txt"
                await eventually(lambda: log.read_text().count("Reloaded server configuration") == 2)

                async def hears() -> bool:
                    try:
                        return bool(await link.ask("$JS.API.STREAM.INFO.X", b"", seconds=0.5))
                    except Unavailable:
                        return False

                await eventually(hears, seconds=20.0)

    async def test_a_write_that_is_not_permitted_fails_at_once_and_is_told_of_once(
        self, tmp_path: Path, users: str, password_file: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A write without an answer is tried again and again, for minutes here; nobody waits for this one."""
        with configured_nats(tmp_path, users) as server:
            access = Access(
                url=server.url, user="worker", password_file=str(password_file), inbox_prefix="_INBOX_worker"
            )
            async with linked(access, patience=Patience(unanswered_seconds=300.0)) as link:
                began = time.monotonic()
                for _ in range(3):
                    with pytest.raises(NotStored, match=r"does not permit this user to publish to \$KV\.mine\.Key"):
                        await Bucket(link, "mine").write("Key", b"{}", 0)
                assert time.monotonic() - began < 100
        assert caplog.text.count("NATS does not permit this") == 1
        assert _SECRET not in caplog.text
