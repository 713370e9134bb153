"""Which packs the workers that are alive can execute, by their own word."""

from __future__ import annotations

from typing import Any

import pytest

from pyoco_server.core.packs import PACKS
from pyoco_server.core.packs.ability import Offer, offer_of, shortfall
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import WorkerRecord, encode_worker, read_worker

OCR = PACKS["ocr"]
NO_ENGINE = "there is no engine; install one"


def a_worker(**more: Any) -> WorkerRecord:
    facts: dict[str, Any] = {"worker_id": "w", "instance_id": "i", "state": WorkerState.IDLE, "tags": ("default",)}
    return WorkerRecord(**facts | {"last_seen_at": 1.0, "last_heartbeat_at": 1.0} | more)


LACKING = a_worker(packs=("decision",), packs_missing={"ocr": NO_ENGINE})
ENGLISH = a_worker(packs=("decision", "ocr"), packs_provide={"ocr": ["eng"]})
KOREAN = a_worker(packs=("decision", "ocr"), packs_provide={"ocr": ["kor"]})
OF_EARLIER = a_worker(packs=("decision", "ocr"))


@pytest.mark.parametrize(
    "living",
    [
        [],
        [a_worker(packs=())],  # it takes no priced runs, or not yet
        [a_worker(packs=()), a_worker(packs=None)],
        [LACKING, a_worker(packs=None)],  # one of a version that does not tell
        [OF_EARLIER, LACKING],
    ],
)
def test_a_submission_is_accepted_where_nobody_can_tell_or_some_worker_has_the_pack(living: list[WorkerRecord]) -> None:
    """SAFE-3"""
    assert shortfall(OCR, {}, living) is None


def test_what_all_pack_workers_lack_is_named_once() -> None:
    """SAFE-3"""
    found = shortfall(OCR, {}, [LACKING, LACKING, a_worker(packs=())])
    assert found is not None
    assert (found.text, found.member) == (f"ocr cannot be executed now: {NO_ENGINE}", None)


def test_a_pack_that_every_pack_worker_leaves_out_is_not_offered() -> None:
    """SAFE-3: PYOCO_PACKS of the workers, for example"""
    found = shortfall(OCR, {}, [a_worker(packs=("decision",))])
    assert found is not None
    assert found.text == "ocr cannot be executed now: no worker that is running has it"


def test_one_worker_has_to_have_all_languages_of_a_run() -> None:
    """SAFE-3: what two have together serves no run"""
    assert shortfall(OCR, {"language": "eng"}, [ENGLISH, KOREAN]) is None
    assert shortfall(OCR, {"language": "kor"}, [ENGLISH, KOREAN]) is None
    found = shortfall(OCR, {"language": "eng+kor"}, [ENGLISH, KOREAN])
    assert found is not None
    assert (found.text, found.member) == (
        "ocr cannot be executed with eng, kor now; workers have: eng, kor",
        "language",
    )


def test_the_languages_that_are_missing_are_named() -> None:
    """SAFE-3: also those that are meant when nothing is said"""
    found = shortfall(OCR, {}, [ENGLISH])
    assert found is not None
    assert found.text == "ocr cannot be executed with kor now; workers have: eng"


def test_an_offer_tells_what_single_workers_lack_while_others_execute_the_pack() -> None:
    """SAFE-3"""
    assert offer_of("ocr", [ENGLISH, LACKING]) == Offer(is_executed=True, missing=(NO_ENGINE,), provides=("eng",))
    assert offer_of("ocr", [ENGLISH, OF_EARLIER]).provides is None
    assert offer_of("ocr", [a_worker(packs=())]) == Offer(is_executed=None)


def test_a_record_keeps_what_a_worker_lacks_and_has() -> None:
    """SAFE-3"""
    worker = a_worker(packs=("ocr",), packs_missing={"decision": "no model"}, packs_provide={"ocr": ["eng", "kor"]})
    assert read_worker(encode_worker(worker)) == worker
