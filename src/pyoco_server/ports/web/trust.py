"""Additional trusted certificates from a file."""

from __future__ import annotations

import ssl

from pyoco_server.errors import SettingError

__all__ = ["check_ca_file", "trust"]


def trust(context: ssl.SSLContext, ca_file: str) -> None:
    """Trust the certificates in a file. Blocks. Raises SettingError if it is unreadable or contains no certificates."""
    try:
        context.load_verify_locations(cafile=ca_file)
    except (ssl.SSLError, ValueError) as error:
        raise _refusal(ca_file, "it is no PEM file of certificates") from error
    except OSError as error:
        raise _refusal(ca_file, error.strerror or type(error).__name__) from error


def check_ca_file(ca_file: str) -> None:
    """Check a file like `trust`, without trusting it. Also refuses a file without certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust(context, ca_file)
    if not context.cert_store_stats()["x509"]:  # a list of revoked certificates loads without an error
        raise _refusal(ca_file, "it holds no certificates")


def _refusal(ca_file: str, why: str) -> SettingError:
    return SettingError(
        f"PYOCO_URL_PACK_CA_FILE: no certificates can be read from {ca_file!r}: {why}; "
        "example: PYOCO_URL_PACK_CA_FILE=extra-ca.pem"
    )
