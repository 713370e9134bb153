"""Strict URL parsing: a URL that two parsers could read differently is refused (PRICED-135, PRICED-140)."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import quote, urljoin, urlsplit

__all__ = ["Discard", "Exempt", "Reach", "Target", "parse", "parse_location"]

#: The limit of a URL in its sent form. A tenant's URL has at most 2048 characters, which may have to be escaped; a
#: redirect by a server may be longer, and is repeated in the result.
SENT_LENGTH_MAX: Final = 20_000
_HOST_LENGTH_MAX: Final = 253


class Discard(StrEnum):
    """Why a URL has no page."""

    TIMEOUT = "TIMEOUT"
    NON_HTTPS = "NON_HTTPS"
    TOO_MANY_REDIRECTS = "TOO_MANY_REDIRECTS"
    CONTENT_TOO_LARGE = "CONTENT_TOO_LARGE"
    INVALID_URL = "INVALID_URL"
    DNS_FAILURE = "DNS_FAILURE"
    CONNECT_FAILED = "CONNECT_FAILED"
    TLS_FAILED = "TLS_FAILED"
    PORT_NOT_ALLOWED = "PORT_NOT_ALLOWED"
    OVER_MAX_URLS = "OVER_MAX_URLS"
    TIMEBOX = "TIMEBOX"
    BUDGET = "BUDGET"


@dataclass(frozen=True)
class Exempt:
    """A literal address and port that are exempt from the rules for addresses and ports. For tests."""

    host: str
    port: int

    @classmethod
    def read(cls, text: str) -> Exempt | None:
        """Parse a validated setting: `127.0.0.1:8443`, `[::1]:8443`, or empty."""
        if not text:
            return None
        parts = urlsplit(f"//{text}")
        assert parts.port is not None
        return cls(str(ipaddress.ip_address(parts.hostname or "")), parts.port)


@dataclass(frozen=True, kw_only=True)
class Reach:
    """The schemes and ports that this deployment allows."""

    allow_http: bool = False
    exempt: Exempt | None = None

    @property
    def schemes(self) -> frozenset[str]:
        return frozenset({"https", "http"} if self.allow_http else {"https"})

    @property
    def ports(self) -> frozenset[int]:
        return frozenset({443, 80} if self.allow_http else {443})


@dataclass(frozen=True, kw_only=True)
class Target:
    """The destination of one request. Created only by `parse`."""

    scheme: str
    #: ASCII, lower case, without a trailing dot; an IPv6 address is in canonical form, without brackets.
    host: str
    port: int
    #: Path and query as sent.
    path: str
    #: The host is an address, so no DNS lookup is needed.
    is_literal: bool
    #: The address rules do not apply; see `Exempt`.
    is_exempt: bool

    @property
    def authority(self) -> str:
        """Return the value of the `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


_DEFAULT_PORTS: Final = {"https": 443, "http": 80}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):", re.ASCII)
_PARTS = re.compile(r"[^:]+://([^/?#]*)([^?#]*)(\?[^#]*)?(?:#.*)?", re.DOTALL)
_AUTHORITY = re.compile(r"(\[[^\[\]]*\]|[^\[\]:]*)(?::([0-9]*))?", re.ASCII)
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})", re.ASCII)
_LABEL = re.compile(r"[a-z0-9_-]{1,63}", re.ASCII)
_NUMBER = re.compile(r"(0x[0-9a-f]*)|(0[0-7]*)|([1-9][0-9]*)", re.ASCII)
_LOOKS_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
#: Characters left unescaped in path and query: all that RFC 3986 allows there, brackets, which many servers use, and
#: existing escapes.
_AS_IS = "/?:@!$&'()*+,;=-._~%[]"
#: Unicode categories: control characters, invisible format characters, surrogates, and separators.
_DROPPED = frozenset({"Cc", "Cf", "Cs", "Zs", "Zl", "Zp"})
#: One standard replaces these characters (ß by `ss`), another keeps them: two parsers, two hosts. Such names must be
#: given in their `xn--` form.
_TWO_READINGS = frozenset("\u00df\u1e9e\u03c2\u200c\u200d")


def parse(text: str, reach: Reach) -> Target | Discard:
    """Return the target of a URL, or why it is refused. O(length)."""
    if not _is_clean(text):
        return Discard.INVALID_URL
    scheme = _SCHEME.match(text)
    if scheme is None:
        return Discard.INVALID_URL
    if scheme[1].lower() not in reach.schemes:
        return Discard.NON_HTTPS
    parts = _PARTS.fullmatch(text)
    if parts is None or _BAD_PERCENT.search(parts[2] + (parts[3] or "")):
        return Discard.INVALID_URL
    path = quote((parts[2] or "/") + (parts[3] or ""), safe=_AS_IS)
    return _placed(scheme[1].lower(), parts[1], path, reach)


def parse_location(location: str, base: Target, reach: Reach) -> Target | Discard:
    """Return the target of a redirect from `base`, to which `location` may be relative."""
    if not location or len(location) > SENT_LENGTH_MAX or not _is_clean(location):
        return Discard.INVALID_URL
    if _SCHEME.match(location):  # `urljoin` would read `https:x` as a path
        return parse(location, reach)
    try:
        return parse(urljoin(base.url, location), reach)
    except ValueError:  # raised by urllib for unbalanced brackets
        return Discard.INVALID_URL


def _is_clean(text: str) -> bool:
    """Return whether it is free of characters that parsers treat differently: control characters, any white space,
    surrogates, backslashes."""
    if "\\" in text:
        return False
    if text.isascii():
        return text.isprintable() and " " not in text
    return not any(unicodedata.category(char) in _DROPPED for char in text)


def _placed(scheme: str, authority: str, path: str, reach: Reach) -> Target | Discard:
    match = _AUTHORITY.fullmatch(authority)  # no valid host contains @: no user information (PRICED-143)
    if match is None:
        return Discard.INVALID_URL
    host, is_literal = _host(match[1])
    digits = match[2] or str(_DEFAULT_PORTS[scheme])
    if host is None or len(digits) > 5 or int(digits) > 0xFFFF:
        return Discard.INVALID_URL
    port = int(digits)
    # Compare the text as written, not its value: 127.1 is not exempt where 127.0.0.1 is.
    written = match[1].strip("[]").lower()
    is_exempt = reach.exempt == Exempt(host, port) and written == host
    if port not in reach.ports and not is_exempt:
        return Discard.PORT_NOT_ALLOWED
    target = Target(scheme=scheme, host=host, port=port, path=path, is_literal=is_literal, is_exempt=is_exempt)
    return target if len(target.url) <= SENT_LENGTH_MAX else Discard.INVALID_URL


def _host(text: str) -> tuple[str | None, bool]:
    """Return the canonical host, and whether it is an address. None: the host is invalid."""
    if text.startswith("["):
        return _ipv6(text[1:-1]), True
    name = _ascii(text)
    if name is None:
        return None, False
    name = name.removesuffix(".")
    labels = name.split(".")
    if len(name) > _HOST_LENGTH_MAX or not all(_LABEL.fullmatch(label) for label in labels):
        return None, False
    if _LOOKS_NUMERIC.fullmatch(labels[-1]):
        return _ipv4(labels), True
    return name, False


def _ascii(text: str) -> str | None:
    """Return the ASCII form of a host name. Full-width digits and dots become ASCII, so validate the result, not the
    input."""
    if text.isascii():
        return text.lower()
    if len(text) > _HOST_LENGTH_MAX or _TWO_READINGS & set(text):
        return None
    try:
        return text.encode("idna").decode("ascii").lower()
    except UnicodeError:
        return None


def _ipv6(text: str) -> str | None:
    if "%" in text:  # a zone id, which is meaningful on this machine only
        return None
    try:
        return str(ipaddress.IPv6Address(text))
    except ValueError:
        return None


def _ipv4(labels: list[str]) -> str | None:
    """Parse as `inet_aton` does, and thus all lower layers: 1 to 4 numbers, decimal, octal or hex; the last fills the
    rest."""
    numbers = [_number(label) for label in labels]
    if len(numbers) > 4 or any(number is None for number in numbers):
        return None
    *first, last = [number for number in numbers if number is not None]
    if any(number > 255 for number in first) or last >= 256 ** (4 - len(first)):
        return None
    return str(ipaddress.IPv4Address(last + sum(number << (24 - 8 * at) for at, number in enumerate(first))))


def _number(text: str) -> int | None:
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    if match[1]:
        return int(match[1][2:] or "0", 16)
    return int(match[2], 8) if match[2] else int(match[3])
