"""The TLS certificates of a door, and the name in that of a peer (GRID-166)."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyoco_server.errors import UsageError
from pyoco_server.logs import get_logger

__all__ = ["ServerTls", "TlsFiles", "common_name"]

log = get_logger(__name__)


@dataclass(frozen=True)
class TlsFiles:
    cert: Path
    key: Path
    #: If set, a peer must present a certificate signed by this authority.
    ca: Path | None = None


class ServerTls:
    """The TLS context for new connections. `reload` replaces it; open connections keep the old one."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises UsageError if the files cannot be used."""
        self._files = files
        try:
            self.context = _context(files)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"the certificate cannot be used: {_why(error)}; "
                "example: --tls-cert door.crt --tls-key door.key --tls-ca ca.crt"
            ) from error

    @property
    def demands_certificates(self) -> bool:
        return self._files.ca is not None

    def reload(self) -> bool:
        """Read the files again. Returns False if they cannot be used; the old ones then stay in force."""
        try:
            self.context = _context(self._files)
        except (OSError, ValueError) as error:
            log.error("new certificate cannot be used; keeping the old one", why=_why(error))
            return False
        log.info("certificate reloaded")
        return True


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(files.cert, files.key, password=_no_password)
    if files.ca is not None:
        context.load_verify_locations(files.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _no_password() -> str:
    """Refuse a key with a password: OpenSSL would prompt on the terminal, and a service has none."""
    raise ValueError("the key has a password; a key without one is needed")


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "it is no certificate and key that belong together"
    return getattr(error, "strerror", None) or str(error)


def common_name(certificate: Mapping[str, Any] | None) -> str | None:
    """Return the common name in a peer's certificate. None: it has none, or several."""
    parts = [part for group in (certificate or {}).get("subject", ()) for part in group]
    names = [value for name, value in parts if name == "commonName"]
    return names[0] if len(names) == 1 else None
