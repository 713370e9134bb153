"""The credentials and certificates of a NATS connection. Secrets are read from files and never logged."""

from __future__ import annotations

import base64
import importlib
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyoco_server.config import NatsBackendConfig
from pyoco_server.config.settings import settings
from pyoco_server.errors import SettingError
from pyoco_server.logs import get_logger

__all__ = ["Access", "Certificates", "access_of", "why_not_in"]

log = get_logger(__name__)

_FILE_BYTES_MAX = 64 * 1024
#: The system's CA bundle has about 250 KiB.
_CA_BYTES_MAX = 1024 * 1024
_JWT = re.compile(rb"BEGIN NATS USER JWT[^\n]*\n\s*([\w=-]+\.[\w=-]+\.[\w=-]+)\s")
_SEED = re.compile(rb"BEGIN USER NKEY SEED[^\n]*\n\s*(\w+)\s")
_SETTINGS = {each.name: each for each in settings(NatsBackendConfig)}


@dataclass(frozen=True, kw_only=True)
class Access:
    """Address and credentials. An empty string means not set."""

    url: str
    user: str = ""
    password_file: str = ""
    creds: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    inbox_prefix: str = "_INBOX"

    @property
    def demands_tls(self) -> bool:
        """Whether TLS is required. Configured certificates require it, whatever the address."""
        return bool(self.tls_ca or self.tls_cert)

    @property
    def is_memory(self) -> bool:
        """Whether a part of the address is a server in this process."""
        return any(part.strip().startswith("memory://") for part in self.url.split(","))

    def _check_memory(self) -> None:
        if "," in self.url:
            raise SettingError("PYOCO_NATS_URL: memory://name is one address and stands alone")
        for name in ("user", "password_file", "creds", "tls_ca", "tls_cert", "tls_key"):
            if getattr(self, name):
                variable = _SETTINGS[f"nats_{name}"].variable
                raise SettingError(f"PYOCO_NATS_URL is {self.url}, which has no users and no TLS; unset {variable}")

    def options(self) -> dict[str, Any]:
        """Return the options for the library's `connect`.

        Reads every configured file, so that errors are found before connecting. Raises SettingError, which names the
        variable.
        """
        if self.is_memory:
            self._check_memory()
        self._check_pairs()
        found: dict[str, Any] = {"inbox_prefix": self.inbox_prefix}
        if self.user:
            found |= {"user": self.user, "password": _Password(self.password_file)}
        if self.creds:
            credentials = _Credentials(self.creds)
            found |= {"signature_cb": credentials.sign, "user_jwt_cb": credentials.jwt}
        context = self.context()
        return found if context is None else found | {"tls": context}

    def _check_pairs(self) -> None:
        for one, other in (("user", "password_file"), ("tls_cert", "tls_key")):
            if bool(getattr(self, one)) != bool(getattr(self, other)):
                names = [_SETTINGS[f"nats_{name}"].variable for name in (one, other)]
                raise SettingError(f"{names[0]} and {names[1]} go together, and only one of them is set")
        if self.user and self.creds:
            raise SettingError("PYOCO_NATS_USER and PYOCO_NATS_CREDS both say who this is; set one of them")
        if self.demands_tls and any(part.strip().lower().startswith("ws://") for part in self.url.split(",")):
            raise SettingError(
                "PYOCO_NATS_URL has an address with ws://, which is without TLS, and PYOCO_NATS_TLS_CA or "
                "PYOCO_NATS_TLS_CERT asks for TLS; example: wss://nats.example:443"
            )

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context. None: no certificates are configured; `tls://` then uses the system's CAs.

        Raises SettingError.
        """
        if not self.demands_tls:
            return None
        if self.tls_ca:
            _read("nats_tls_ca", self.tls_ca)
        try:
            context = ssl.create_default_context(cafile=self.tls_ca or None)
        except (OSError, ValueError) as error:
            raise _refusal("nats_tls_ca", self.tls_ca, f"holds no certificates: {_reason(error)}") from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.tls_cert:
            _read("nats_tls_cert", self.tls_cert)
            _read("nats_tls_key", self.tls_key)
            try:
                context.load_cert_chain(self.tls_cert, self.tls_key, password=_no_password)
            except (OSError, ValueError) as error:
                why = f"is not the key of the certificate in PYOCO_NATS_TLS_CERT: {_reason(error)}"
                raise _refusal("nats_tls_key", self.tls_key, why) from None
        return context


def access_of(config: NatsBackendConfig) -> Access:
    return Access(
        url=config.nats_url,
        user=config.nats_user,
        password_file=config.nats_password_file,
        creds=config.nats_creds,
        tls_ca=config.nats_tls_ca,
        tls_cert=config.nats_tls_cert,
        tls_key=config.nats_tls_key,
        inbox_prefix=config.nats_inbox_prefix,
    )


class Certificates:
    """Reads the certificates at each handshake, so that renewed ones need no restart."""

    def __init__(self, access: Access, last: ssl.SSLContext) -> None:
        self._access, self._last = access, last
        self._logged = ""

    def __call__(self) -> ssl.SSLContext:
        try:
            self._last = self._access.context() or self._last
        except SettingError as error:
            if str(error) != self._logged:  # there are several attempts a second
                log.error("cannot reload the certificates; using the previous ones", reason=str(error))
            self._logged = str(error)
        else:
            self._logged = ""
        return self._last


class _Password:
    """Reads the password at each connection, so that a new one needs no restart."""

    def __init__(self, path: str) -> None:
        """Raises SettingError."""
        self._path = path
        self._last = _read_password(path)

    def __call__(self) -> str:
        try:
            self._last = _read_password(self._path)
        except SettingError as error:
            log.error("cannot reload the password; using the previous one", reason=str(error))
        return self._last

    def __repr__(self) -> str:
        return "<password>"


def _read_password(path: str) -> str:
    name = "nats_password_file"
    try:
        password = _read(name, path).decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise _refusal(name, path, "is not text") from None
    if not password or "\n" in password:
        raise _refusal(name, path, "must hold one line, the password")
    return password


class _Credentials:
    """A JWT and its signing seed, read at each connection.

    The library's own reader is not used: on a file that is being written and still empty, it loops without end and
    blocks the event loop.
    """

    def __init__(self, path: str) -> None:
        """Raises SettingError."""
        self._path = path
        self._jwt, self._seed = _read_creds(path)

    def sign(self, nonce: str) -> bytes:
        """Sign a nonce. Called before `jwt`, so that both use the same version of the file."""
        try:
            self._jwt, self._seed = _read_creds(self._path)
        except SettingError as error:
            log.error("cannot reload the credentials; using the previous ones", reason=str(error))
        return base64.b64encode(_nkeys().from_seed(bytearray(self._seed)).sign(nonce.encode()))

    def jwt(self) -> bytes:
        return self._jwt

    def __repr__(self) -> str:
        return "<credentials>"


def _read_creds(path: str) -> tuple[bytes, bytes]:
    name = "nats_creds"
    text = _read(name, path) + b"\n"
    jwt, seed = _JWT.search(text), _SEED.search(text)
    if jwt is None or seed is None:
        raise _refusal(name, path, "is not a credentials file: a user's JWT and its seed")
    nkeys = _nkeys()
    try:
        nkeys.from_seed(bytearray(seed[1]))
    except (nkeys.NkeysError, ValueError):
        raise _refusal(name, path, "holds no seed that signs") from None
    return jwt[1], seed[1]


def _nkeys() -> Any:
    """Import the optional package nkeys. Raises SettingError if it is not installed."""
    try:
        return importlib.import_module("nkeys")
    except ImportError:
        needs = "PYOCO_NATS_CREDS needs one more package; example: pip install 'pyoco-server[creds]'"
        raise SettingError(needs) from None


def _read(name: str, path: str) -> bytes:
    most = _CA_BYTES_MAX if name == "nats_tls_ca" else _FILE_BYTES_MAX
    try:
        with Path(path).open("rb") as file:
            found = file.read(most + 1)
    except OSError as error:
        raise _refusal(name, path, f"cannot be read: {error.strerror}") from None
    if len(found) > most:
        raise _refusal(name, path, f"has more than {most} bytes")
    return found


def _refusal(name: str, path: str, problem: str) -> SettingError:
    """Return the error, with the complete path however long it is."""
    setting = _SETTINGS[name]
    return SettingError(f"{setting.variable}={path!r} {problem}; example: {setting.variable}={setting.example}")


def _no_password() -> str:
    """Raise ValueError for an encrypted key: OpenSSL would prompt on the terminal, and a service has none."""
    raise ValueError("it has a password, and one without is needed")


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)


def why_not_in(error: BaseException | None) -> str:
    """Return why the connection failed, as text, with details of a certificate error. "": nothing to add."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or str(error)).lower().replace('_', ' ')}"
    return str(error) if error is not None and type(error).__module__.startswith("nats") else ""
