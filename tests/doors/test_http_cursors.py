"""`GET /runs`: cursors that are not ours, not of this list, or not whole; and other bad queries."""

from __future__ import annotations

import base64
import hashlib
import json
import random
from dataclasses import replace
from typing import Any

from pyoco_server.doors.http.cursors import read_cursor, write_cursor
from pyoco_server.ports.index.port import ListPosition, RunFilter
from support.doors_support import check_refusal
from support.gateways import Gateway, submit
from support.listing import page, put, run_at

SHA = "ab12" * 16
PLACE = ListPosition(7, 1700000000.1234567, "00000000-0000-4000-8000-000000000001")


def content_of(token: str) -> str:
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))[6:].decode()


#: How a list without filters is called in a token.
NO_FILTERS = content_of(write_cursor(PLACE, RunFilter())).rsplit(",", 1)[1].rstrip("]")


def token_of(text: str) -> str:
    """A token of this content that passes for ours."""
    check = hashlib.blake2b(text.encode(), digest_size=6, person=b"pyoco-cursor").digest()
    return base64.urlsafe_b64encode(check + text.encode()).rstrip(b"=").decode()


class TestBadQueries:
    async def test_a_cursor_with_other_filters_is_refused_and_says_so(self, gateway: Gateway) -> None:
        """FLOW-106, FLOW-111"""
        await put(gateway, *(run_at(float(n + 1), n, workflow_yaml_sha256=SHA) for n in range(5)))
        base: dict[str, Any] = {"flow": "hello", "updated_after": 0, "workflow_yaml_sha256": SHA}
        _, cursor = await page(gateway, **base, limit=2)
        others: list[dict[str, Any]] = [
            {},
            base | {"flow": "bye"},
            base | {"tag": "x"},
            base | {"status": "PENDING"},
            base | {"kind": "flow"},
            base | {"updated_after": 1},
            base | {"workflow_yaml_sha256": "0" * 64},
            base | {"run_id": "0000"},
        ]
        for query in others:
            problems = check_refusal(await gateway.client.get("/runs", params=query | {"cursor": cursor}), number=17)
            assert [problem["loc"] for problem in problems] == [["query", "cursor"]]
            assert "other filters" in problems[0]["msg"]
        for same in (
            base,
            base | {"limit": 1},
            base | {"include": "full"},
            base | {"workflow_yaml_sha256": SHA.upper()},
        ):
            await page(gateway, **same, cursor=cursor)

    async def test_a_changed_cursor_is_refused_and_never_a_defect(self, gateway: Gateway) -> None:
        """FLOW-106"""
        token = write_cursor(PLACE, RunFilter())
        await page(gateway, cursor=token)
        dice = random.Random(9)
        for _ in range(300):
            text = list(token)
            for _ in range(dice.randrange(1, 4)):
                place = dice.randrange(len(text))
                text[place : place + dice.randrange(2)] = dice.choice(["", "A", "_", "=", "é", "\0", "/", token])
            mutant = "".join(text)
            answer = await gateway.client.get("/runs", params={"cursor": mutant})
            if mutant != token:
                problems = check_refusal(answer, number=17)
                assert [problem["loc"] for problem in problems] == [["query", "cursor"]]

    async def test_whatever_a_token_holds_is_looked_at(self, gateway: Gateway) -> None:
        """FLOW-106"""
        cases: list[str] = [
            "",
            "[]",
            "{}",
            "null",
            "7",
            '[1,7,1.0,"x"]',
            '[1,7,1.0,"x","d","more"]',
            '[2,7,1.0,"x","d"]',
            '[1,-7,1.0,"x","d"]',
            '[1,1e30,1.0,"x","d"]',
            '[1,9223372036854775808,1.0,"x","d"]',
            '[1,7,-1.0,"x","d"]',
            '[1,7,1e999,"x","d"]',
            '[1,7,NaN,"x","d"]',
            '[1,7,"1","x","d"]',
            '[1,7,true,"x","d"]',
            '[1,7,1.0,7,"d"]',
            '[1,7,1.0,"\\ud800","d"]',
            "[" * 2000,
        ]
        for text in cases:
            token = token_of(text.replace('"d"', NO_FILTERS))
            answer = await gateway.client.get("/runs", params={"cursor": token})
            assert answer.status_code == 422, text[:80]
            problems = check_refusal(answer, number=17)
            assert [problem["loc"] for problem in problems] == [["query", "cursor"]], text[:80]
            assert "other filters" not in problems[0]["msg"], text[:80]

    async def test_such_a_token_passes_when_its_content_is_right(self, gateway: Gateway) -> None:
        """Otherwise the test above would prove nothing."""
        await page(gateway, cursor=token_of(f'[1,7,1.0,"x",{NO_FILTERS}]'))

    async def test_a_bad_value_is_refused_by_name(self, gateway: Gateway) -> None:
        """FLOW-102, FLOW-103, FLOW-105, FLOW-106"""
        cases: list[tuple[str, list[str]]] = [
            ("cursor=", ["cursor"]),
            ("cursor=" + "A" * 5000, ["cursor"]),
            ("cursor=%00", ["cursor"]),
            ("cursor=null", ["cursor"]),
            ("updated_after=", ["updated_after"]),
            ("updated_after=now", ["updated_after"]),
            ("updated_after=-1e-9", ["updated_after"]),
            ("updated_after=1e999", ["updated_after"]),
            ("updated_after=-inf", ["updated_after"]),
            ("updated_after=0x10", ["updated_after"]),
            ("updated_after=1_0", ["updated_after"]),
            ("updated_after=%D9%A3", ["updated_after"]),
            ("updated_after=%201", ["updated_after"]),
            ("updated_after=" + "9" * 5000, ["updated_after"]),
            ("envelope=", ["envelope"]),
            ("envelope=2", ["envelope"]),
            ("envelope=wahr", ["envelope"]),
            ("envelope=true&envelope=true", ["envelope"]),
            ("cursor=a&cursor=a", ["cursor"]),
            ("updated_after=1&updated_after=2", ["updated_after"]),
            ("flow=a&flow=b", ["flow"]),
            ("tag=a&tag=a", ["tag"]),
            ("status=PENDING&status=x", ["status"]),
            ("cursor=x&updated_after=x&envelope=x&limit=x", ["cursor", "envelope", "limit", "updated_after"]),
        ]
        for query, names in cases:
            answer = await gateway.client.get(f"/runs?{query}")
            assert answer.status_code == 422, query[:80]
            problems = check_refusal(answer, number=17)
            assert sorted(problem["loc"] for problem in problems) == [["query", name] for name in names], query[:80]

    async def test_include_may_be_given_often(self, gateway: Gateway) -> None:
        """FLOW-101"""
        await submit(gateway, params={"a": 1})
        items, _ = await page(gateway, envelope="true", include=["nothing", "full"])
        assert items[0]["params"] == {"a": 1}


def test_a_walk_goes_on_at_a_gateway_of_another_release() -> None:
    """Tokens of a version that knew no beginning of a run id: what is not asked for does not show in a token"""
    old = [
        (RunFilter(), ("", None, None, None, None, None, None)),
        (RunFilter(tenant_id="t", status="FAILED", flow="f"), ("t", "FAILED", "f", None, None, None, None)),
        (RunFilter(tag="x", kind="exec", updated_after=5.5), ("", None, None, "x", "exec", None, 5.5)),
        (RunFilter(workflow_yaml_sha256=SHA), ("", None, None, None, None, SHA, None)),
    ]
    for wanted, members in old:
        text = json.dumps(members, separators=(",", ":")).encode()
        digest = hashlib.blake2b(text, digest_size=6).hexdigest()
        token = token_of(json.dumps([1, PLACE.revision, PLACE.updated_at, PLACE.run_id, digest]))
        place, fits = read_cursor(token)
        assert (place, fits(wanted)) == (PLACE, True)
        assert content_of(write_cursor(PLACE, wanted)).endswith(f'"{digest}"]')
        assert not fits(replace(wanted, run_id_prefix="abcd"))
