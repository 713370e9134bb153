"""What the ocr pack may be asked, and whose files it may read."""

from __future__ import annotations

from typing import Any

import pytest

from pyoco_server.core.packs import PACKS
from pyoco_server.core.packs.ocr import OCR
from pyoco_server.core.packs.spec import Here

HERE = Here(tenant_id="acme", input_bucket="dpp-inputs")


def image(key: str = "dpp/acme/1/a.png", bucket: str = "dpp-inputs", kind: str = "s3") -> dict[str, Any]:
    return {"kind": kind, "bucket": bucket, "key": key}


@pytest.mark.parametrize(
    "inputs",
    [
        {"images": [image()]},
        {"images": [image()] * 10, "ocr_profile": "P2B", "language": "kor+eng+jpn+deu+fra", "max_pages": 50},
        {"images": [image("dpp/acme/x/ÜÖ 東京.tiff")], "max_pages": 1.0, "language": "eng"},
    ],
    ids=["least", "most", "another script"],
)
def test_what_may_be_asked(inputs: dict[str, Any]) -> None:
    """PRICED-129"""
    assert OCR.check(inputs, HERE) == ()
    assert PACKS["ocr"] is OCR
    assert OCR.has_own_process


@pytest.mark.parametrize(
    ("inputs", "loc"),
    [
        ({}, ("images",)),
        ({"images": []}, ("images",)),
        ({"images": [image()] * 11}, ("images",)),
        ({"images": "dpp/acme/1/a.png"}, ("images",)),
        ({"images": ["dpp/acme/1/a.png"]}, ("images", 0)),
        ({"images": [image(), image(kind="file")]}, ("images", 1, "kind")),
        ({"images": [{"kind": "s3", "bucket": "dpp-inputs"}]}, ("images", 0, "key")),
        ({"images": [image() | {"version": "1"}]}, ("images", 0)),
        ({"images": [image("x" * 1025)]}, ("images", 0, "key")),
        ({"images": [image()], "ocr_profile": "P4"}, ("ocr_profile",)),
        ({"images": [image()], "language": "kor+"}, ("language",)),
        ({"images": [image()], "language": "KOR"}, ("language",)),
        ({"images": [image()], "language": "kor\n"}, ("language",)),
        ({"images": [image()], "language": "a/b"}, ("language",)),
        ({"images": [image()], "language": "kor+eng+jpn+deu+fra+spa"}, ("language",)),
        ({"images": [image()], "language": 1}, ("language",)),
        ({"images": [image()], "max_pages": 0}, ("max_pages",)),
        ({"images": [image()], "max_pages": 51}, ("max_pages",)),
        ({"images": [image()], "dpi": 300}, ()),
    ],
)
def test_what_may_not(inputs: dict[str, Any], loc: tuple[str | int, ...]) -> None:
    """PRICED-129"""
    (problem, *_) = OCR.check(inputs, HERE)
    assert problem.loc == loc


@pytest.mark.parametrize(
    "key",
    [
        "dpp/other/1/a.png",
        "dpp/acme2/1/a.png",
        "dpp/acmE/1/a.png",
        "dpp/acme",
        "dpp/acme/",
        "/dpp/acme/a.png",
        "dpp/acme/../other/a.png",
        "dpp/acme/x/../../other/a.png",
        "dpp/acme/./a.png",
        "dpp/acme//a.png",
        "dpp/acme/x\\..\\..\\other\\a.png",
        "dpp/acme/a\x00.png",
        "dpp/acme/a\n.png",
        "dpp/acme/a\u202epng",
        "s3://dpp-inputs/dpp/acme/a.png",
        "dpp/acme/" + "あ" * 500,
    ],
)
def test_a_key_that_is_not_the_tenants_own_is_refused_and_not_repeated(key: str) -> None:
    """PRICED-147"""
    (problem,) = OCR.check({"images": [image(), image(key)]}, HERE)
    assert problem.loc == ("images", 1, "key")
    assert "dpp/acme/" in problem.msg
    assert key not in problem.msg or key in {"dpp/acme", "dpp/acme/"}


def test_another_bucket_is_refused() -> None:
    """PRICED-147"""
    (problem,) = OCR.check({"images": [image(bucket="dpp-results")]}, HERE)
    assert problem.loc == ("images", 0, "bucket")
    assert "dpp-results" not in problem.msg


def test_the_worker_fetches_each_file_once() -> None:
    keys = ["dpp/acme/b", "dpp/acme/a", "dpp/acme/b"]
    assert OCR.files({"images": [image(key) for key in keys]}) == ("dpp/acme/b", "dpp/acme/a")
