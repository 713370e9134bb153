"""Unknown paths, methods and queries."""

from __future__ import annotations

import pytest

from support.doors_support import (
    SOMEONE,
    Door,
    check_refusal,
)
from support.gateways import error

pytestmark = pytest.mark.asyncio(loop_scope="module")


STRANGE_IDS = [
    "x",
    "yaml",
    "0",
    "None",
    SOMEONE.upper().replace("0", "A"),
    SOMEONE.replace("-", ""),
    f"%7B{SOMEONE}%7D",
    f"urn:uuid:{SOMEONE}",
    f"{SOMEONE}%20",
    f"{SOMEONE}%0A",
    "a" * 10_000,
    "%00",
    "%ff",
    "%2e%2e",
    "a%2Fb",
    "*",
    "%3E",
    "a.b",
    "$KV",
    "%E6%97%A5%E6%9C%AC",
    "%7B%7D",
    "%7Brun_id%7D",
    "%20GET",
    "%20POST",
]


class TestPaths:
    @pytest.mark.parametrize(("method", "end"), [("GET", ""), ("GET", "/tasks"), ("POST", "/cancel")])
    @pytest.mark.parametrize("run_id", STRANGE_IDS, ids=lambda run_id: run_id[:40])
    async def test_what_is_no_id_is_answered_like_an_unknown_run(
        self, door: Door, method: str, end: str, run_id: str
    ) -> None:
        """FLOW-36, FLOW-50"""
        answer = await door.send(method, f"/runs/{run_id}{end}")
        assert (answer.status_code, answer.json()) == (404, error(5, "run not found"))

    @pytest.mark.parametrize("path", ["/nothing", f"/runs/{SOMEONE}/nothing", "/runs//tasks", "/%7B%7D", "/%20GET"])
    async def test_a_path_nobody_serves_is_not_found(self, door: Door, path: str) -> None:
        answer = await door.send("GET", path)
        assert (answer.status_code, answer.json()) == (404, error(2, "not found"))

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("DELETE", "/runs"),
            ("PUT", f"/runs/{SOMEONE}"),
            ("GET", f"/runs/{SOMEONE}/cancel"),
            ("POST", "/health"),
            ("POST", f"/runs/{SOMEONE}/tasks"),
            ("PATCH", "/runs/yaml"),
            ("TRACE", "/runs"),
            ("NONSENSE", "/runs"),
        ],
    )
    async def test_a_method_nobody_serves_is_not_allowed(self, door: Door, method: str, path: str) -> None:
        answer = await door.send(method, path)
        assert (answer.status_code, answer.json()) == (405, error(2, "method not allowed"))
        assert answer.headers["allow"]

    @pytest.mark.parametrize(
        ("path", "status"),
        [("/health", 200), ("/runs", 200), (f"/runs/{SOMEONE}", 404), ("/runs?limit=0", 422), ("/nothing", 404)],
    )
    async def test_a_head_is_answered_as_a_get(self, door: Door, path: str, status: int) -> None:
        assert (await door.send("HEAD", path)).status_code == status


class TestQueries:
    @pytest.mark.parametrize(
        ("query", "names"),
        [
            ("status=pending", ["status"]),
            ("status=", ["status"]),
            ("status=PENDING%00", ["status"]),
            ("limit=0", ["limit"]),
            ("limit=201", ["limit"]),
            ("limit=-1", ["limit"]),
            ("limit=", ["limit"]),
            ("limit=1.0", ["limit"]),
            ("limit=1e1", ["limit"]),
            ("limit=%D9%A3", ["limit"]),
            ("limit=%2B5", ["limit"]),
            ("limit=" + "9" * 5000, ["limit"]),
            ("limit=1&limit=0", ["limit"]),
            ("workflow_yaml_sha256=", ["workflow_yaml_sha256"]),
            ("workflow_yaml_sha256=" + "g" * 64, ["workflow_yaml_sha256"]),
            ("workflow_yaml_sha256=" + "a" * 63, ["workflow_yaml_sha256"]),
            ("workflow_yaml_sha256=" + "a" * 65, ["workflow_yaml_sha256"]),
            ("workflow_yaml_sha256=" + "a" * 64 + "%0A", ["workflow_yaml_sha256"]),
            ("run_id=", ["run_id"]),
            ("run_id=abc", ["run_id"]),
            ("run_id=abcg", ["run_id"]),
            ("run_id=abcd%0A", ["run_id"]),
            ("run_id=abc%25", ["run_id"]),
            ("run_id=" + "a" * 37, ["run_id"]),
            ("run_id=abcd&run_id=abcd", ["run_id"]),
            ("kind=program", ["kind"]),
            ("status=x&limit=x&kind=x", ["kind", "limit", "status"]),
            ("cursor=nonsense", ["cursor"]),
            ("updated_after=-1", ["updated_after"]),
            ("updated_after=nan", ["updated_after"]),
            ("updated_after=inf", ["updated_after"]),
        ],
        ids=lambda value: value[:40] if isinstance(value, str) else "",
    )
    async def test_a_bad_value_is_refused_by_name(self, door: Door, query: str, names: list[str]) -> None:
        """FLOW-60, FLOW-97, FLOW-100, FLOW-102, FLOW-104, FLOW-106"""
        problems = check_refusal(await door.send("GET", f"/runs?{query}"), number=17)
        assert sorted(problem["loc"] for problem in problems) == [["query", name] for name in names]

    @pytest.mark.parametrize(
        "query",
        ["flow=%ff", "flow=%00", "tag=%ed%a0%80", "flow=" + "x" * 50_000, "&&&", "tag=%", "include=%00", "flow"],
    )
    async def test_a_strange_value_finds_nothing_or_is_passed_over(self, door: Door, query: str) -> None:
        answer = await door.send("GET", f"/runs?{query}")
        assert answer.status_code == 200
        assert isinstance(answer.json(), list)
