"""The configuration of a router: groups and rules (GRID-134, GRID-136)."""

from __future__ import annotations

import pytest

from pyoco_server.doors.frames.router.plan import DENY, RoutedGroup, RouterPlan, RoutingRule, read_backend, read_rule
from pyoco_server.errors import UsageError
from pyoco_server.frames.addresses import Address

G1 = RoutedGroup("g1", (Address("127.0.0.1", 5000),))
G2 = RoutedGroup("g2", (Address("127.0.0.1", 5001),))


@pytest.mark.parametrize(
    ("text", "backend"),
    [
        ("g1=127.0.0.1:5000", G1),
        (
            "b_2-x=h:1|[::1]:2",
            RoutedGroup("b_2-x", (Address("h", 1), Address("::1", 2))),
        ),
        ("g1=127.0.0.1:5000|127.0.0.1:5000", G1),
    ],
)
def test_a_backend_is_a_name_and_its_doors(text: str, backend: RoutedGroup) -> None:
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
        ("exec=render*:g1", RoutingRule("exec", "render*", "g1")),
        ("client=team-[ab]:g2", RoutingRule("client", "team-[ab]", "g2")),
        ("exec=secret?:deny", RoutingRule("exec", "secret?", DENY)),
        ("exec=*:g1", RoutingRule("exec", "*", "g1")),
    ],
)
def test_a_rule_is_a_pattern_and_a_group(text: str, rule: RoutingRule) -> None:
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
        ((G1,), (RoutingRule("exec", "*", "g2"),), "unknown backend, 'g2'"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(
    backends: tuple[RoutedGroup, ...], rules: tuple[RoutingRule, ...], words: str
) -> None:
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
    rules = (
        RoutingRule("exec", "secret*", DENY),
        RoutingRule("client", "root", "g1"),
        RoutingRule("exec", "render*", "g2"),
    )
    assert RouterPlan((G1, G2), rules).target(exec_name, client_id) == target
