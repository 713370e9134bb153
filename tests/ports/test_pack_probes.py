"""What a worker finds on its machine for the packs that need more than their package."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyoco_server.config.packs import PackConfig
from pyoco_server.core.packs.ability import ABLE
from pyoco_server.wiring.packs import pack_abilities
from support.servers import free_port

PACKS = ("compliance", "decision", "eval", "ocr", "url")


def test_without_an_engine_ocr_cannot_be_executed_and_nothing_else_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """SAFE-3"""
    monkeypatch.setenv("PATH", "")
    found = pack_abilities(PACKS, PackConfig(ocr_engine="tesseract"))
    assert "apt-get install tesseract-ocr" in found.pop("ocr").missing
    assert all(each == ABLE for each in found.values())


def test_the_languages_of_the_engine_are_what_ocr_provides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SAFE-3: under our own names, too"""
    command = tmp_path / "tesseract"
    command.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && { echo "tesseract 5.3"; exit; }\n'
        'printf "List of languages\\nchi_sim\\neng\\nosd\\n"\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = pack_abilities(["ocr"], PackConfig(ocr_engine="tesseract"))["ocr"]
    assert (found.missing, found.provides) == ("", ("chi", "chi_sim", "eng", "zho"))
    command.write_text("#!/bin/sh\nexit 1\n")
    assert pack_abilities(["ocr"], PackConfig(ocr_engine="tesseract"))["ocr"].missing == "tesseract ended with status 1"


def test_a_model_that_takes_no_connections_is_missing_and_its_address_is_not_told() -> None:
    """SAFE-3"""
    port = free_port()
    config = PackConfig(decision_url=f"http://127.0.0.1:{port}/v1", decision_model="m")
    missing = pack_abilities(["decision"], config)["decision"].missing
    assert missing == "the model at PYOCO_DECISION_URL cannot be reached: Connection refused"
    assert str(port) not in missing
