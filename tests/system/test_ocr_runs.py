"""A run of the ocr pack from upload to document: a gateway, a worker with its own processes, and a real engine."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from support.priced.ocr_pages import TEXTS, draw, need_tesseract
from support.priced.processes import Gateway, Payer, Site, settings_of
from support.priced.stacks import POSTGRES, SQLITE
from support.servers import NatsServer


@pytest.mark.parametrize("kind", [SQLITE, POSTGRES])
def test_an_image_is_uploaded_read_paid_for_and_made_a_document(
    own_nats_server: NatsServer, tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    """PRICED-127, PRICED-132, PRICED-147, PRICED-148: files in the object store of NATS, and in S3"""
    need_tesseract()
    site = Site(tmp_path, own_nats_server, settings_of(kind, tmp_path, request))
    try:
        gateway = site.gateway("gateway").until_ready()
        site.worker("worker").until_ready()
        anna, bert = site.payer(), site.payer()
        image = _upload(gateway, anna, _two_pages())
        inputs = {"images": [image], "language": "eng"}
        assert gateway.post(bert, pack_type="ocr", inputs=inputs).status_code == 422, "it is not Bert's"
        assert bert.tenant_id not in image["key"]

        wishes = {"include_markdown": True, "include_docx": True}
        run_id = gateway.submitted(anna, pack_type="ocr", inputs=inputs, artifacts=wishes)
        missing = {"images": [image | {"key": image["key"] + "x"}]}
        lost = gateway.submitted(anna, pack_type="ocr", inputs=missing)
        broken = gateway.submitted(anna, pack_type="ocr", inputs={"images": [_upload(gateway, anna, b"no image")]})

        shown = gateway.until_status(anna, run_id, "COMPLETED", "FAILED", seconds=80)
        assert (shown["status"], shown["cost"]["used_usd"]) == ("COMPLETED", "0.0200"), shown
        envelope = httpx.get(shown["result"]["presigned_url"], timeout=60).json()
        assert [text["page"] for text in envelope["data"]["texts"]] == [1, 2]
        assert TEXTS["eng"][0] in _text(envelope)
        assert envelope["meta"]["ocr"]["engine"] == "tesseract"
        artifacts = {
            each["name"]: httpx.get(each["presigned_url"], timeout=60) for each in shown["result"]["artifacts"]
        }
        assert set(artifacts) == {"ocr.md", "ocr.docx"}
        assert TEXTS["eng"][1] in artifacts["ocr.md"].text
        document = zipfile.ZipFile(io.BytesIO(artifacts["ocr.docx"].content)).read("word/document.xml")
        assert TEXTS["eng"][0].encode() in document

        for failed, code in ((lost, "INPUT_MISSING"), (broken, "IMAGE_UNKNOWN")):
            shown = gateway.until_status(anna, failed, "COMPLETED", "FAILED", seconds=80)
            assert (shown["status"], shown["result"]["reason_code"]) == ("FAILED", "PACK_FAILED")
            assert shown["result"]["problem"]["detail"].startswith(f"{code}: ")
            assert shown["cost"]["used_usd"] == shown["cost"]["minimum_fee_usd"] == "0.0050"
        site.check_money()
    finally:
        site.end()


def _two_pages() -> bytes:
    """A TIFF; each of its pages counts."""
    written = io.BytesIO()
    first: Image.Image = draw("eng")
    first.save(written, "TIFF", save_all=True, append_images=[draw("eng", ["The second page."])])
    return written.getvalue()


def _upload(gateway: Gateway, payer: Payer, data: bytes) -> dict[str, Any]:
    answer = gateway.client.post("/v1/inputs?name=scan.tif", content=data, headers=payer.headers)
    assert answer.status_code == 201, answer.text
    assert answer.json()["sha256"] == hashlib.sha256(data).hexdigest()
    image: dict[str, Any] = answer.json()["image"]
    return image


def _text(envelope: dict[str, Any]) -> str:
    return "\n".join(block["text"] for page in envelope["data"]["texts"] for block in page["blocks"])
