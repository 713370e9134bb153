"""The security headers of every HTML response (SAFE-10): one policy for pages, errors and stored files."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Final

from starlette.types import Message, Send

__all__ = ["HTML_HEADERS", "with_html_headers"]

#: Only our own files and our own API. Data of a run or a worker cannot become code (FLOW-259).
_CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "font-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
#: Browser features that the page never uses.
_UNUSED = (
    "accelerometer",
    "autoplay",
    "browsing-topics",
    "camera",
    "display-capture",
    "encrypted-media",
    "fullscreen",
    "geolocation",
    "gyroscope",
    "hid",
    "idle-detection",
    "local-fonts",
    "magnetometer",
    "microphone",
    "midi",
    "payment",
    "picture-in-picture",
    "publickey-credentials-get",
    "screen-wake-lock",
    "serial",
    "usb",
    "xr-spatial-tracking",
)
HTML_HEADERS: Final = {
    "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": ", ".join(f"{feature}=()" for feature in _UNUSED),
}
_AS_SENT: Final = tuple((name.lower().encode(), value.encode()) for name, value in HTML_HEADERS.items())
_POLICY: Final = b"content-security-policy"
#: Content types that a browser renders as a page in which code may run.
_PAGES: Final = (b"text/html", b"application/xhtml+xml", b"image/svg+xml", b"text/xml", b"application/xml")


def with_html_headers(send: Send) -> Send:
    """Wrap `send` to add the headers to each response that a browser renders as a page. Others pass unchanged."""

    def sending(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            headers = message.get("headers", ())
            if _is_page(headers):
                message = {**message, "headers": _with_ours(headers)}
        return send(message)

    return sending


def _is_page(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name == b"content-type" and value.strip().lower().startswith(_PAGES) for name, value in headers)


def _with_ours(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Keep existing policies beside ours, since browsers enforce both; replace the other headers."""
    ours = {name for name, _ in _AS_SENT}
    own = [(name, value) for name, value in headers if name not in ours]
    policies = [(name, value) for name, value in headers if name == _POLICY and (name, value) not in _AS_SENT]
    return [*own, *policies, *_AS_SENT]
