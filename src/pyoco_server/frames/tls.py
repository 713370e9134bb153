"""TLS from clients, workers and routers to a door (GRID-166)."""

from __future__ import annotations

import ssl

from pyoco_server.errors import UsageError

__all__ = ["client_context", "why_unreachable"]


def client_context(
    *, ca: str | None = None, cert: str | None = None, key: str | None = None, option: str = "--tls"
) -> ssl.SSLContext:
    """Return a context for TLS 1.2 or later that verifies the door's certificate and host name.

    The certificate must be signed by `ca`, or by a CA that the system trusts. `cert` and `key` are a client
    certificate, for doors that require one. `option` is the prefix of the option names in error messages. Reads files.
    Raises UsageError.
    """
    if (cert is None) != (key is None):
        raise UsageError(f"{option}-cert and {option}-key go together")
    try:
        if ca == "":  # OpenSSL would use the system's CAs
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
    """Return why a door was not reached, as text; for a certificate error, what is wrong with the certificate."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"tls_error: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"tls_error: {error.reason}"
    return getattr(error, "strerror", None) or type(error).__name__
