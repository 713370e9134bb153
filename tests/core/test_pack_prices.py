"""What packs cost, and the least reservation of a submission."""

from __future__ import annotations

from typing import Any

import pytest

from pyoco_server.config.packs import PackConfig
from pyoco_server.core.packs import PACKS, PackSpec
from pyoco_server.core.packs.prices import RESERVATION_MIN_USD_MICROS, Tariff
from pyoco_server.core.priced.constants import MINIMUM_FEE_MIN_USD_MICROS
from pyoco_server.core.priced.money import charge_on_failure, minimum_fee, usd_up

CASE = {"id": "c", "expected": "", "actual": ""}
IMAGE = {"kind": "s3", "bucket": "b", "key": "k"}
INPUTS: dict[str, dict[str, Any]] = {
    "decision": {"question": "?"},
    "compliance": {"text": "t", "rules": [{"id": "r", "kind": "MAX_LENGTH", "value": 1}] * 100},
    "eval": {"metric": "EXACT", "cases": [CASE] * 1_000},
    "url": {"urls": ["https://example.org"] * 30},
    "ocr": {"images": [IMAGE] * 10},
}


def floor_of(pack: str, inputs: dict[str, Any], **prices: Any) -> str:
    return usd_up(PACKS[pack].least_reservation(inputs, PackConfig(**prices).prices))


@pytest.mark.parametrize(
    ("pack", "usd"),
    [("decision", "0.0500"), ("compliance", "0.0200"), ("eval", "0.1050"), ("url", "0.0070"), ("ocr", "0.0100")],
)
def test_the_floor_is_the_price_that_is_known_from_the_inputs(pack: str, usd: str) -> None:
    """SAFE-1"""
    assert floor_of(pack, INPUTS[pack]) == usd


def test_every_pack_that_comes_with_the_server_has_a_known_price() -> None:
    """SAFE-1: at double prices the floor doubles, but for the fixed price of a decision"""
    names = [name for name in PackConfig.__dataclass_fields__ if name.startswith("price_")]
    double = {name: 2 * getattr(PackConfig(), name) for name in names}
    floors = {pack: (floor_of(pack, INPUTS[pack]), floor_of(pack, INPUTS[pack], **double)) for pack in PACKS}
    assert floors == {
        "decision": ("0.0500", "0.0500"),
        "compliance": ("0.0200", "0.0400"),
        "eval": ("0.1050", "0.2100"),
        "url": ("0.0070", "0.0140"),
        "ocr": ("0.0100", "0.0200"),
    }


@pytest.mark.parametrize("price", [0, 1, 4_999, 5_000])
def test_no_floor_is_below_the_least_fee(price: int) -> None:
    """SAFE-1"""
    assert floor_of("compliance", INPUTS["compliance"], price_compliance_usd_micros=price) == "0.0050"
    assert floor_of("compliance", INPUTS["compliance"], price_compliance_usd_micros=5_001) == "0.0051"


def test_a_pack_that_names_no_price_has_the_least_floor() -> None:
    """SAFE-1"""
    spec = PackSpec(name="theirs", inputs=lambda _: ())
    assert spec.least_reservation({}, PackConfig().prices) == RESERVATION_MIN_USD_MICROS == MINIMUM_FEE_MIN_USD_MICROS


@pytest.mark.parametrize("reserved", [5_000, 5_100, 250_000, 4_999_900, 5_000_100, 9_000_000_000_000_000])
def test_from_the_floor_on_the_fee_of_a_failure_is_never_above_the_reservation(reserved: int) -> None:
    """SAFE-2"""
    fee = minimum_fee(reserved)
    assert charge_on_failure(fee, reserved) == fee <= reserved


@pytest.mark.parametrize(
    ("tariff", "reserved", "units", "covered"),
    [
        (Tariff(5_000, 2_000), 4_999, 30, 0),
        (Tariff(5_000, 2_000), 5_000, 30, 0),
        (Tariff(5_000, 2_000), 6_999, 30, 0),
        (Tariff(5_000, 2_000), 7_000, 30, 1),
        (Tariff(5_000, 2_000), 64_999, 30, 29),
        (Tariff(5_000, 2_000), 65_000, 30, 30),
        (Tariff(5_000, 2_000), 10**12, 30, 30),
        (Tariff(5_000, 0), 4_999, 30, 0),
        (Tariff(5_000, 0), 5_000, 30, 30),
        (Tariff(0, 0), 100, 30, 30),
    ],
)
def test_a_reservation_covers_whole_units(tariff: Tariff, reserved: int, units: int, covered: int) -> None:
    """SAFE-2"""
    assert tariff.covered(reserved, units) == covered
    assert covered == 0 or tariff.of(covered) <= reserved
    assert covered == units or tariff.of(covered + 1) > reserved
