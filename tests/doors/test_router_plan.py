"""What a router is told: backends and rules (GRID-134, GRID-136)."""

from __future__ import annotations

import pytest

from pyoco_server.doors.frames.router.plan import DENY, Backend, RouterPlan, Rule, read_backend, read_rule
from pyoco_server.errors import UsageError
from pyoco_server.frames.addresses import Address

G1 = Backend("g1", (Address("127.0.0.1", 5000),))
G2 = Backend("g2", (Address("127.0.0.1", 5001),))


@pytest.mark.parametrize(
    ("text", "backend"),
    [
        ("g1=127.0.0.1:5000", G1),
        (
            "b_2-x=h:1|[::1]:2",
            Backend("b_2-x", (Address("h", 1), Address("::1", 2))),
        ),
        ("g1=127.0.0.1:5000|127.0.0.1:5000", G1),
    ],
)
def test_a_backend_is_a_name_and_its_doors(text: str, backend: Backend) -> None:
    """GRID-134"""
    assert read_backend(text) == backend


@pytest.mark.parametrize(
    "text",
    ["", "g1", "g1=", "=h:1", "g 1=h:1", "deny=h:1", "g1=h", "g1=h:0", "g1=h:1|", "g1=h:1||h:2", "x" * 33 + "=h:1"],
)
def test_what_is_no_backend_is_refused_with_an_example(text: str) -> None:
    """GRID-190"""
    with pytest.raises(UsageError, match="example"):
        read_backend(text)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("exec=render*:g1", Rule("exec", "render*", "g1")),
        ("client=team-[ab]:g2", Rule("client", "team-[ab]", "g2")),
        ("exec=secret?:deny", Rule("exec", "secret?", DENY)),
        ("exec=*:g1", Rule("exec", "*", "g1")),
    ],
)
def test_a_rule_is_a_pattern_and_a_group(text: str, rule: Rule) -> None:
    """GRID-136"""
    assert read_rule(text) == rule


@pytest.mark.parametrize(
    "text", ["", "exec", "exec=", "exec=a", "exec=:g1", "exec=a:", "worker=a:g1", "exec=a b:g1", "exec=a.b:g1"]
)
def test_what_is_no_rule_is_refused_with_an_example(text: str) -> None:
    """GRID-190"""
    with pytest.raises(UsageError, match="example"):
        read_rule(text)


@pytest.mark.parametrize(
    ("backends", "rules", "words"),
    [
        ((), (), "needs a backend"),
        ((G1, G1), (), "twice"),
        ((G1,), (Rule("exec", "*", "g2"),), "unknown backend, 'g2'"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(backends: tuple[Backend, ...], rules: tuple[Rule, ...], words: str) -> None:
    """GRID-190"""
    with pytest.raises(UsageError, match=words):
        RouterPlan(backends, rules)


@pytest.mark.parametrize(
    ("exec_name", "client_id", "target"),
    [
        ("secretA", "anna", DENY),
        ("secretA", "root", DENY),
        ("calcA", "root", "g1"),
        ("renderA", "anna", "g2"),
        ("renderA", "root", "g1"),
        ("RenderA", "anna", None),
        ("calcA", "anna", None),
    ],
)
def test_the_first_rule_that_matches_decides(exec_name: str, client_id: str, target: str | None) -> None:
    """GRID-136: in order, and by exact case."""
    rules = (Rule("exec", "secret*", DENY), Rule("client", "root", "g1"), Rule("exec", "render*", "g2"))
    assert RouterPlan((G1, G2), rules).target(exec_name, client_id) == target
