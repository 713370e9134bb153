"""TLS towards a door: of clients, workers and routers (GRID-166)."""

from __future__ import annotations

import ssl

from pyoco_server.errors import UsageError

__all__ = ["client_context", "why_unreachable"]


def client_context(
    *, ca: str | None = None, cert: str | None = None, key: str | None = None, option: str = "--tls"
) -> ssl.SSLContext:
    """TLS 1.2 or later; the door's certificate must be of its address and signed by `ca`, or by one the system trusts.

    `cert` and `key`: an own certificate, for doors that demand one. `option`: how the options are called that these
    come from, for messages. Reads files. Raises UsageError.
    """
    if (cert is None) != (key is None):
        raise UsageError(f"{option}-cert and {option}-key go together")
    try:
        if ca == "":  # OpenSSL would take those that the system trusts
            raise FileNotFoundError
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError):
        raise UsageError(f"{option}-ca is not a file with certificates that can be read") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if cert is not None:
        try:
            context.load_cert_chain(cert, key)
        except (OSError, ssl.SSLError):
            raise UsageError(
                f"{option}-cert and {option}-key are not a certificate and its key that can be read"
            ) from None
    return context


def why_unreachable(error: Exception) -> str:
    """Why a door was not reached, for people; what is wrong with its certificate, when that was it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"tls_error: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"tls_error: {error.reason}"
    return getattr(error, "strerror", None) or type(error).__name__
