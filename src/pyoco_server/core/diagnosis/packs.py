"""Rules about the packs of this machine."""

from __future__ import annotations

from collections.abc import Iterator

from pyoco_server.core.diagnosis.facts import Facts
from pyoco_server.core.diagnosis.finding import Remark, danger, note, ok, warning

__all__ = ["installed", "reads_images", "test_allow"]


def installed(facts: Facts) -> Iterator[Remark]:
    packs = facts.machine.packs
    if packs is None:
        return
    if packs.strangers:
        yield danger(
            f"PYOCO_PACKS names what is not installed here: {', '.join(packs.strangers)}",
            "no gateway and no worker starts with it",
            f"install it, or correct PYOCO_PACKS; there are: {', '.join(packs.known)}",
            about="PYOCO_PACKS",
        )
    for name, package, why in packs.left_out:
        yield warning(
            f"the pack {name} of {package} is left out: {why}",
            "nobody can ask for it, and workers here do not execute it",
            f"repair {package}, or uninstall it",
            about=name,
        )
    if packs.offered:
        yield ok(f"packs: {', '.join(packs.offered)}")


def reads_images(facts: Facts) -> Iterator[Remark]:
    packs = facts.machine.packs
    if packs is None or "ocr" not in packs.offered:
        return
    if packs.ocr_engine is None:
        yield note(
            "the pack ocr has nothing here that reads images",
            "on a worker, each of its runs fails; a gateway needs none",
            "install tesseract-ocr with the data of its languages, or: pip install 'pyoco-server[ocr]'; "
            "or leave ocr out by PYOCO_PACKS",
        )
    else:
        yield ok(f"images are read by {packs.ocr_engine}")


def test_allow(facts: Facts) -> Iterator[Remark]:
    packs = facts.machine.packs
    if packs is not None and packs.test_allow:
        yield warning(
            f"PYOCO_URL_PACK_TEST_ALLOW={packs.test_allow} is set, which is for tests alone",
            "whoever may submit a run reaches that address by the url pack",
            "unset PYOCO_URL_PACK_TEST_ALLOW",
        )
