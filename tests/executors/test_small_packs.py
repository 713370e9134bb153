"""Decision, compliance and eval as a worker executes them: data, price, and what becomes of an answerer's troubles."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.config.packs import PackConfig
from pyoco_server.core.answers.answer import Ask, DocumentAnswer
from pyoco_server.core.answers.extractive import NO_CONTEXT
from pyoco_server.core.packs import PACKS
from pyoco_server.core.packs.decision import CONTEXT_LENGTH_MAX, QUESTION_LENGTH_MAX
from pyoco_server.core.packs.spec import Here
from pyoco_server.core.priced.envelope import PackResult
from pyoco_server.executors.packs import decision
from pyoco_server.executors.packs.pool import PackHosts
from pyoco_server.executors.packs.port import Context, PackError, PackUnavailable
from pyoco_server.loops.priced.pack_lane import PackLane
from pyoco_server.ports.answerer.port import AnswererUnavailable, NoAnswer
from pyoco_server.wiring.packs import LOADER, executors
from support.priced.pack_scenes import Scene
from support.priced.stacks import POSTGRES, SQLITE, an_ask, open_stack

SMALL = ("decision", "compliance", "eval")
HERE = Here(tenant_id="acme", input_bucket="dpp-inputs")
CONTEXT = Context(
    run_id="5b0c6f7e-5a3f-4a3c-8f0e-1c3f6c1f2a10",
    tenant_id="acme",
    trace_id=None,
    deadline=time.monotonic() + 90,
    min_reliability_score=0.8,
    artifacts={},
)


def in_time() -> Context:
    """With all its time before it, whenever the test begins."""
    return replace(CONTEXT, deadline=time.monotonic() + 90)


#: As JSON may write them.
RULES = [
    {"id": "r1", "kind": "MUST_CONTAIN", "value": "refund"},
    {"id": "r2", "kind": "MUST_NOT_CONTAIN", "value": "GUARANTEE", "case_sensitive": True},
    {"id": "r3", "kind": "MAX_LENGTH", "value": 50.0},
]


def executed(pack: str, inputs: dict[str, Any], config: PackConfig | None = None) -> PackResult:
    assert PACKS[pack].check(inputs, HERE) == ()
    execute = executors({pack: ""}, config or PackConfig())[pack]
    result = execute(inputs, CONTEXT)
    assert result == execute(inputs, CONTEXT)
    return result


@pytest.mark.parametrize("pack", SMALL)
def test_the_small_packs_share_a_process(pack: str) -> None:
    assert not PACKS[pack].has_own_process


@pytest.mark.parametrize(
    "inputs",
    [
        {"question": "?"},
        {"question": "Shall we?", "mode": "brief"},
        {"question": "Shall we?", "context": "", "mode": "full"},
        {"question": "a\x00b\x1b", "context": "a\x00b. c"},
        {"question": "x" * QUESTION_LENGTH_MAX, "context": "y" * CONTEXT_LENGTH_MAX, "mode": "full"},
    ],
    ids=["least", "brief", "full", "control characters", "longest"],
)
def test_whatever_may_be_asked_gets_the_same_answer_at_the_fixed_price(inputs: dict[str, Any]) -> None:
    """PRICED-127, PRICED-128, PRICED-134"""
    result = executed("decision", inputs)
    assert set(result.data) == {"answer_text", "confidence"}
    assert isinstance(result.data["answer_text"], str)
    assert result.data["answer_text"]
    assert 0 <= result.data["confidence"] <= 1
    assert result.actual_cost_usd_micros == 50_000
    assert result.tokens_consumed == 0
    assert result.reliability_score == result.data["confidence"]


def test_the_context_answers_briefly_or_in_full() -> None:
    inputs = {"question": "When are refunds paid?", "context": "We ship. Refunds are paid in May. Cats refund nothing."}
    brief, full = (executed("decision", inputs | {"mode": mode}) for mode in ("brief", "full"))
    assert brief.data["answer_text"] == "Refunds are paid in May."
    assert brief.data == executed("decision", inputs).data
    assert full.data["answer_text"].split("\n")[0] == "Refunds are paid in May."
    assert "Chosen by" in full.data["answer_text"]
    assert executed("decision", {"question": "When?"}).data == {"answer_text": NO_CONTEXT, "confidence": 0.0}


def test_a_text_that_breaks_a_rule_is_a_result_like_any_other() -> None:
    """PRICED-127, PRICED-150"""
    result = executed("compliance", {"text": "We guarantee a Refund.", "rules": RULES})
    assert result.data["verdict"] == "PASS"
    assert result.data["findings"] == [
        {"rule_id": "r1", "passed": True, "count": 1, "first_offset": 15},
        {"rule_id": "r2", "passed": True, "count": 0, "first_offset": None},
        {"rule_id": "r3", "passed": True, "count": 22, "first_offset": None},
    ]
    assert (result.actual_cost_usd_micros, result.tokens_consumed, result.reliability_score) == (20_000, 0, None)
    broken = executed("compliance", {"text": "x" * 51, "rules": RULES})
    assert broken.data["verdict"] == "FAIL"
    assert [finding["passed"] for finding in broken.data["findings"]] == [False, True, False]
    assert broken.data["findings"][2] == {"rule_id": "r3", "passed": False, "count": 51, "first_offset": 50}
    assert "xx" not in repr(broken)


def test_cases_are_scored_in_their_order_and_paid_for_one_by_one() -> None:
    """PRICED-127, PRICED-151"""
    cases = [{"id": f"c{number}", "expected": "yes", "actual": " YES " if number else "no"} for number in range(3)]
    result = executed("eval", {"metric": "NORMALIZED", "cases": cases})
    assert result.data == {
        "total": 3,
        "passed": 2,
        "score": "0.6666",
        "results": [{"id": "c0", "passed": False}, {"id": "c1", "passed": True}, {"id": "c2", "passed": True}],
    }
    assert (result.actual_cost_usd_micros, result.tokens_consumed, result.reliability_score) == (5_300, 0, None)


@pytest.mark.parametrize(("reserved", "done"), [(4_999, 0), (5_000, 0), (5_199, 1), (5_200, 2)])
def test_eval_stops_before_the_first_case_that_the_reservation_does_not_cover(reserved: int, done: int) -> None:
    """SAFE-2: where the prices of the worker are above those of the gateway"""
    cases = [{"id": f"c{number}", "expected": "yes", "actual": "yes"} for number in range(3)]
    ctx = replace(CONTEXT, reserved_usd_micros=reserved)
    result = executors({"eval": ""}, PackConfig())["eval"]({"metric": "EXACT", "cases": cases}, ctx)
    assert result.data["stopped"] == {"reason": "BUDGET", "done": done, "of": 3}
    assert [each["id"] for each in result.data["results"]] == [f"c{number}" for number in range(done)]
    assert (result.data["total"], result.data["score"]) == (done, "1.0000" if done else "0.0000")
    assert result.actual_cost_usd_micros == 5_000 + 100 * done


@pytest.mark.parametrize("pack", SMALL)
def test_the_page_of_a_pack_shows_what_it_really_gives(pack: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "packs" / f"{pack}.md").read_text(encoding="utf-8")
    sent, shown = re.search(r"-d '(\{.*?\n  \})'", page, re.DOTALL), re.search(r"```json\n(.*?)```", page, re.DOTALL)
    assert sent is not None
    assert shown is not None
    body = json.loads(sent[1])
    assert executed(body["pack_type"], body["inputs"]).data == json.loads(shown[1])


def test_prices_are_those_of_the_settings() -> None:
    """PRICED-127"""
    config = PackConfig(price_compliance_usd_micros=7, price_eval_base_usd_micros=0, price_eval_case_usd_micros=11)
    case = {"id": "c", "expected": "", "actual": ""}
    assert executed("compliance", {"text": "t", "rules": RULES}, config).actual_cost_usd_micros == 7
    assert executed("eval", {"metric": "EXACT", "cases": [case]}, config).actual_cost_usd_micros == 11
    assert executed("decision", {"question": "?"}, config).actual_cost_usd_micros == 50_000


def test_executors_are_made_of_settings() -> None:
    """The answerer that asks a server is there only where it is chosen."""
    openai = PackConfig(decision_url="http://127.0.0.1:9/v1", decision_model="m")
    with pytest.raises(PackError, match="ANSWERER_UNAVAILABLE"):
        executors({"decision": ""}, openai)["decision"]({"question": "?"}, in_time())


class Told:
    """An answerer that says what it is told to."""

    def __init__(self, says: DocumentAnswer | NoAnswer) -> None:
        self._says = says
        self.asked: list[tuple[Ask, float]] = []

    def answer(self, ask: Ask, seconds: float, cancelled: threading.Event) -> DocumentAnswer:
        assert cancelled is CONTEXT.cancelled
        self.asked.append((ask, seconds))
        if isinstance(self._says, NoAnswer):
            raise self._says
        return self._says


def test_an_answerer_is_asked_for_as_long_as_there_is_time_and_its_tokens_are_told() -> None:
    """PRICED-128"""
    told = Told(DocumentAnswer(text="Yes.", confidence=0.75, tokens_consumed=42))
    result = decision.executor(told)({"question": "q", "context": "c", "mode": "full"}, in_time())
    ((ask, seconds),) = told.asked
    assert ask == Ask(question="q", context="c", is_full=True)
    assert 0 < seconds <= 90
    assert result.data == {"answer_text": "Yes.", "confidence": 0.75}
    assert (result.tokens_consumed, result.reliability_score) == (42, 0.75)
    assert result.actual_cost_usd_micros == 50_000


def test_a_model_that_does_not_say_how_sure_it_is_has_no_score() -> None:
    """PRICED-128: nobody knows whether it meets what was wanted"""
    result = decision.executor(Told(DocumentAnswer(text="Yes.", confidence=None)))({"question": "q"}, CONTEXT)
    assert (result.data["confidence"], result.reliability_score) == (0.5, None)


@pytest.mark.parametrize("kind", NoAnswer.__subclasses__())
def test_every_trouble_of_an_answerer_has_a_code(kind: type[NoAnswer]) -> None:
    with pytest.raises(PackError) as caught:
        decision.executor(Told(kind("it is so")))({"question": "q"}, CONTEXT)
    assert (caught.value.code, caught.value.detail) == (decision.CODES[kind], "it is so")
    assert set(decision.CODES) == set(NoAnswer.__subclasses__())


@pytest.fixture(params=[SQLITE, POSTGRES])
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    async with open_stack(request.param, request) as stack:
        await stack.credit(1_000_000)
        yield Scene(stack, tmp_path)
        await stack.check_money()


async def test_from_submission_to_envelope_also_with_characters_that_databases_mind(scene: Scene) -> None:
    """PRICED-127, PRICED-129, PRICED-130: PostgreSQL holds no NUL in a text, and inputs may have one"""
    asked: dict[str, dict[str, Any]] = {
        "decision": {"question": "refunds\x00paid?\x1b", "context": "Ships.\x00 Refunds are\x00paid. 😀\u2028"},
        "compliance": {"text": "a\x00b", "rules": [{"id": "\x00", "kind": "MUST_CONTAIN", "value": "\x00"}]},
        "eval": {"metric": "EXACT", "cases": [{"id": "\x00", "expected": "\x00", "actual": "\x00"}]},
    }
    runs = {pack: await scene.stack.submitted(an_ask(pack_type=pack, inputs=asked[pack])) for pack in SMALL}
    hosts = PackHosts(1, 0, [PACKS[pack] for pack in SMALL], PackConfig(), LOADER)
    worker = PackLane(scene.priced, hosts, 1, SMALL, files=scene.files)
    await worker.start()
    try:
        ended = {pack: await scene.ended(run, 30) for pack, run in runs.items()}
    finally:
        await worker.stop(1)
    data = {}
    for pack, run in ended.items():
        envelope = await scene.envelope(run)
        assert envelope is not None
        assert envelope["status"] == "COMPLETED"
        data[pack] = envelope["data"]
    assert data["decision"]["answer_text"] == "Refunds are paid."
    assert data["compliance"]["findings"] == [{"rule_id": "\x00", "passed": True, "count": 1, "first_offset": 1}]
    assert data["eval"]["results"] == [{"id": "\x00", "passed": True}]
    costs = {pack: run.actual_cost_usd_micros for pack, run in ended.items()}
    assert costs == {"decision": 50_000, "compliance": 20_000, "eval": 5_100}


def test_an_answerer_that_is_away_is_the_operators_fault() -> None:
    """SAFE-3"""
    away = AnswererUnavailable("it is away", is_operators_fault=True)
    with pytest.raises(PackUnavailable) as caught:
        decision.executor(Told(away))({"question": "q"}, CONTEXT)
    assert caught.value.code == "ANSWERER_UNAVAILABLE"
