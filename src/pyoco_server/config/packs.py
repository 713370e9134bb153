"""The settings of the packs: prices, and the services they use. Gateways use some of them to check inputs."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from pyoco_server.config.settings import FLAG, Audience, ValueKind, check_all, choice, declare, integer, values_in
from pyoco_server.core.packs.prices import Prices, Tariff
from pyoco_server.core.priced.constants import MAX_AMOUNT_USD_MICROS
from pyoco_server.errors import SettingError

__all__ = ["PackConfig"]

_PRICE = integer(0, MAX_AMOUNT_USD_MICROS)
#: Characters allowed in a header.
_KEY_FORM = re.compile(r"[!-~]*", re.ASCII)


def _is_literal_loopback(value: object) -> bool:
    """Whether this is a literal loopback address with a port, such as `127.0.0.1:8443` or `[::1]:8443`."""
    if not isinstance(value, str):
        return False
    try:
        parts = urlsplit(f"//{value}")
        is_loopback = ipaddress.ip_address(parts.hostname or "").is_loopback
        return is_loopback and bool(parts.port) and parts.username is None and not parts.path
    except ValueError:
        return False


def _address_problem(value: object) -> str | None:
    if value == "":
        return None
    try:
        parts = urlsplit(value if isinstance(value, str) else "")
        if parts.scheme not in {"http", "https"}:
            return "must begin with http:// or https://"
        is_whole = bool(parts.hostname) and parts.port != 0 and not any(map(str.isspace, parts.netloc))
    except ValueError:
        is_whole = False
    return None if is_whole else "must have a host, and a port from 1 to 65535 if any"


def _file(example: str) -> ValueKind:
    return ValueKind(
        str.strip, lambda value: None if isinstance(value, str) and "\0" not in value else "is not a path", example
    )


_TEST_ALLOW = ValueKind(
    str.strip,
    lambda value: None if value == "" or _is_literal_loopback(value) else "must be a loopback address and a port",
    "127.0.0.1:8443",
)
_ADDRESS = ValueKind(str.strip, _address_problem, "https://models.example.com/v1")
_KEY = ValueKind(
    str.strip,
    lambda value: None if isinstance(value, str) and _KEY_FORM.fullmatch(value) else "must be of ASCII without spaces",
    "sk-0123456789",
)
_TEXT = ValueKind(str.strip, lambda value: None if isinstance(value, str) else "is not a text", "some-model")


@dataclass(frozen=True, kw_only=True)
class PackConfig:
    """The settings of packs. Wrong values raise SettingError, a ValueError that names the variable."""

    decision_url: str = declare(
        "",
        _ADDRESS,
        "W",
        "Base URL, including `/v1`, of the server that answers decisions: one with the chat API of OpenAI. Unset: "
        "sentences of the context are picked, without a model.",
        secret=True,
    )
    decision_model: str = declare("", _TEXT, "W", "Model to use there.")
    decision_api_key: str = declare("", _KEY, "W", "API key for that server.", secret=True)

    url_pack_allow_http: bool = declare(False, FLAG, "GW", "`1`: the url pack also fetches plain http, from port 80.")
    url_pack_ca_file: str = declare(
        "", _file("extra-ca.pem"), "W", "PEM file of additional CA certificates that the url pack trusts."
    )
    url_pack_test_allow: str = declare(
        "",
        _TEST_ALLOW,
        "W",
        "For tests only: the url pack may fetch from exactly this loopback address and port, such as "
        "`127.0.0.1:8443`, whatever its rules say.",
        audience=Audience.TESTS,
    )

    ocr_engine: str = declare(
        "auto", choice("auto", "tesseract", "rapidocr"), "W", "OCR engine: `auto` takes the first one installed."
    )
    ocr_profiles_file: str = declare(
        "",
        _file("ocr-profiles.yaml"),
        "W",
        "YAML file that defines the OCR profiles P1, P2A, P2B and P3. Unset: the built-in profiles.",
    )

    price_url_base_usd_micros: int = declare(5_000, _PRICE, "GW", "Base price of a url run.")
    price_url_each_usd_micros: int = declare(
        2_000, _PRICE, "GW", "Price of each URL to which a connection was attempted."
    )
    price_ocr_page_usd_micros: int = declare(10_000, _PRICE, "GW", "Price of each page that ocr processed.")
    price_compliance_usd_micros: int = declare(20_000, _PRICE, "GW", "Price of a compliance run.")
    price_eval_base_usd_micros: int = declare(5_000, _PRICE, "GW", "Base price of an eval run.")
    price_eval_case_usd_micros: int = declare(100, _PRICE, "GW", "Price of each case of an eval run.")

    def __post_init__(self) -> None:
        check_all(self)
        if self.decision_url and not self.decision_model:
            raise SettingError(
                f"PYOCO_DECISION_MODEL is needed with PYOCO_DECISION_URL; example: PYOCO_DECISION_MODEL={_TEXT.example}"
            )

    @property
    def prices(self) -> Prices:
        """The prices: a gateway refuses reservations below them, and a worker charges them."""
        return Prices(
            compliance=Tariff(self.price_compliance_usd_micros),
            eval=Tariff(self.price_eval_base_usd_micros, self.price_eval_case_usd_micros),
            url=Tariff(self.price_url_base_usd_micros, self.price_url_each_usd_micros),
            ocr=Tariff(0, self.price_ocr_page_usd_micros),
        )

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> Self:
        """Read the settings from these variables. Raises SettingError."""
        return cls(**values_in(variables, cls))
