"""Envelopes as packs leave them: one of each kind, and one in which everything is odd."""

from __future__ import annotations

from typing import Any

from support.pretended_runs import RUN_ID

__all__ = ["MARKUP", "compliance", "decision", "envelope", "evaluation", "foreign", "ocr", "odd", "url"]

MARKUP = "<img src=x onerror=alert(1)>"
SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


def envelope(pack_type: str, data: Any, **more: Any) -> dict[str, Any]:
    return {
        "schema_version": "0.4.2.2",
        "run_id": RUN_ID,
        "pack_type": pack_type,
        "status": "COMPLETED",
        "generated_at": "2026-02-13T00:00:05Z",
        "cost": {"reserved_usd": "0.2500", "used_usd": "0.0500", "minimum_fee_usd": "0.0050"},
        "data": data,
        "artifacts": {},
        "logs": {"discard_log": [], "blocked_log": []},
        "meta": {"trace_id": "t_1", "profile_version": "p", "reliability_met": None, "tokens_consumed": 0},
    } | more


def a_file(name: str, size: int, content_type: str) -> dict[str, Any]:
    return {name: {"key": f"dpp/acme/{name}", "sha256": SHA256, "bytes": size, "content_type": content_type}}


def decision() -> dict[str, Any]:
    answer = "Ship on Friday: the tests are green and nobody is on leave.\nOtherwise wait until Monday."
    return envelope(
        "decision",
        {"answer_text": answer, "confidence": 0.834, "evidence": [{"sentence": 3, "score": 0.83}]},
        meta={"reliability_met": True, "tokens_consumed": 42},
    )


def url() -> dict[str, Any]:
    pages = [
        {
            "url": f"https://example.com/{at}",
            "final_url": f"https://www.example.com/{at}" if at % 3 == 0 else f"https://example.com/{at}",
            "status_code": 404 if at == 2 else 200,
            "content_type": "text/html; charset=utf-8",
            "title": f"Page {at}: how the pump is serviced",
            "text_excerpt": "The pump has to be serviced every six months. " * 30,
            "fetched_at": "2026-02-13T00:00:03Z",
            "flags": ["TRUNCATED"] if at == 1 else [],
        }
        for at in range(5)
    ]
    discarded = [
        {"url": "http://example.com/plain", "reason": "NON_HTTPS"},
        {"url": "https://slow.example/", "reason": "TIMEOUT"},
        {"url": "https://odd.example/", "reason": "OF_A_NEWER_PACK"},
    ]
    blocked = [{"url": "https://intern.example/", "resolved_ip": "10.0.0.7", "reason": "PRIVATE_IP"}]
    return envelope("url", {"results": pages}, logs={"discard_log": discarded, "blocked_log": blocked})


def ocr() -> dict[str, Any]:
    blocks = [
        {"text": "서울특별시 청구서(?) 2026년 2월\nInvoice No. 4711", "confidence": 0.97},
        {"text": "합계 [□] 원, total 12,300 KRW", "confidence": 0.61},
        {"text": "本日はご来店(?)ありがとうございます。"},
    ]
    pages = [{"source": "dpp/acme/scan.tiff", "page": at, "blocks": blocks} for at in range(1, 6)]
    notes = [{"type": "VERIFY_SPELLING", "value": "청구서"}, {"type": "PAGES_SKIPPED", "value": "6-9"}]
    return envelope(
        "ocr",
        {"texts": pages, "notes": notes},
        artifacts=a_file("ocr.md", 4_096, "text/markdown") | a_file("ocr.docx", 23_456, "application/vnd.x"),
        meta={
            "reliability_met": False,
            "tokens_consumed": 5,
            "ocr": {"engine": "tesseract", "mode": 6, "passes": ["title", "body", "fine_print"], "deskewed": True},
        },
    )


def compliance() -> dict[str, Any]:
    findings = [
        {"rule_id": f"rule-{at}", "passed": at != 1, "count": at, "first_offset": None if at == 0 else at * 100}
        for at in range(4)
    ]
    return envelope("compliance", {"verdict": "FAIL", "findings": findings})


def evaluation() -> dict[str, Any]:
    results = [{"id": f"case-{at}", "passed": at % 100 != 99} for at in range(1000)]
    return envelope("eval", {"total": 1000, "passed": 990, "score": "0.9900", "results": results})


def foreign() -> dict[str, Any]:
    """The envelope of a third-party pack."""
    data = {
        "summary": "Three parts fit.",
        "page": "https://example.com/parts",
        "parts": [{"name": f"part {at}", "price": 12.5, "in_stock": at % 2 == 0} for at in range(250)],
        "serial": 12345678901234567890,
        "deep": {"a": {"b": {"c": [1, 2, {"d": None}]}}},
        "drawings": {"$artifact": "drawings.json"},
        "lost": {"$artifact": "not-there.json"},
        "empty": {},
    }
    return envelope("parts_finder", data, artifacts=a_file("drawings.json", 2_500_000, "application/json"))


def odd() -> dict[str, Any]:
    """In the form of a known pack, with an absurd value in every member."""
    joke = f"{MARKUP} \u202e gnp.exe \x00\x1b[31m {'w' * 2000} مرحبا"
    pages: list[Any] = [
        {
            "url": "javascript:alert(1)",
            "final_url": "https://user:secret@evil.example/",
            "status_code": joke,
            "content_type": joke,
            "title": joke,
            "text_excerpt": joke * 20,
            "flags": [joke, {"a": 1}],
        },
        {"url": {"odd": 1}, "title": None, "status_code": None, "flags": "none"},
        {"url": "data:text/html,<script>alert(1)</script>", "final_url": 7},
    ]
    logs = {"discard_log": [{"url": joke, "reason": joke}, "no object"], "blocked_log": "none"}
    files: dict[str, Any] = {MARKUP: {"bytes": "many", "sha256": joke, "content_type": joke}, "x": None}
    return envelope(
        "url", {"results": pages, joke: joke}, logs=logs, artifacts=files, meta=None, cost=7, generated_at=joke
    )
