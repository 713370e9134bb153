"""What a wheel needs besides itself, and which wheel of a package is the one that runs see."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from packaging.version import Version

from pyoco_server.core import wheel_needs
from pyoco_server.core.wheel_needs import (
    Extras,
    Needs,
    Option,
    Provided,
    lacks_of,
    provided_by,
    read_needs,
    resolve,
    tell_lacks,
    unmet,
)
from pyoco_server.errors import InvalidWheel

HERE = {
    "python_version": "3.11",
    "python_full_version": "3.11.7",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "implementation_name": "cpython",
}
WORKER = {"click": Provided(Version("8.1"), "this worker has")}


def needing(*requires: str) -> Needs:
    return read_needs(requires, "", HERE)


def lacking(*requires: str, provided: Mapping[str, Provided] = WORKER) -> str:
    return tell_lacks(lacks_of(needing(*requires), provided))


@pytest.mark.parametrize(
    "requirement",
    [
        "click",
        "Click>=8,<9",
        "click[fancy]>=8",
        'nothing-like-it; sys_platform == "win32"',
        'nothing-like-it; python_version < "3.9"',
        'nothing-like-it; extra == "more"',
        "click @ https://example.invalid/click.whl",
    ],
)
def test_a_requirement_that_is_met_or_does_not_apply_is_no_lack(requirement: str) -> None:
    """FLOW-236"""
    assert lacking(requirement) == ""


def test_what_is_missing_is_told_with_what_to_do() -> None:
    """FLOW-236, FLOW-242"""
    assert lacking('requests>=2; sys_platform == "linux"') == (
        "needs requests>=2, which neither this worker nor another wheel provides: register a wheel of it, "
        "install it on the worker, or set PYOCO_WHEEL_INDEX"
    )
    assert lacking("click>=9", "requests") == (
        "needs click>=9, but this worker has click 8.1; needs requests, which neither this worker nor another wheel "
        "provides: register a wheel of it, install it on the worker, or set PYOCO_WHEEL_INDEX"
    )


def test_nothing_is_fetched_from_an_address_that_a_wheel_names() -> None:
    """The operator says where packages come from, and nobody else."""
    lacks = lacks_of(needing("requests @ https://example.invalid/requests.whl", "click>=9", "other"), WORKER)
    assert [lack.can_be_fetched for lack in lacks] == [False, False, True]
    assert "nothing is fetched from such an address" in tell_lacks(lacks)


def test_a_version_before_its_release_counts_as_what_it_is() -> None:
    assert lacking("click>=8", provided={"click": Provided(Version("9.0a1"), "the registry has")}) == ""


def test_another_python_is_told() -> None:
    """FLOW-236"""
    assert read_needs([], ">=3.12", HERE).python_problem == "needs Python >=3.12, and this worker runs 3.11.7"
    assert read_needs([], ">=3.8,<4", HERE).python_problem is None


@pytest.mark.parametrize(("requires", "python"), [(["--index-url x"], ""), (["a b c"], ""), ([], "yes")])
def test_what_cannot_be_read_is_refused(requires: list[str], python: str) -> None:
    with pytest.raises(InvalidWheel, match="cannot be read"):
        read_needs(requires, python, HERE)


def option(package: str, version: str, *requires: str, fetched: frozenset[str] = frozenset()) -> Option:
    return Option(f"{package}-{version}", package, Version(version), needing(*requires), fetched)


def settled(*options: list[Option]) -> list[str]:
    return sorted(one.wheel_name for one in resolve(options, WORKER).values())


def test_the_wanted_wheels_are_shown_when_they_have_what_they_need() -> None:
    """FLOW-233"""
    assert settled([option("a", "2", "b>=2", "click")], [option("b", "2"), option("b", "1")]) == ["a-2", "b-2"]
    assert settled([option("a", "2", "x", fetched=frozenset({"x"})), option("a", "1")]) == ["a-2"]
    assert settled([], []) == []


def test_a_wheel_whose_partner_failed_gives_way_to_the_version_that_fits() -> None:
    """a 2 needs b 2, which could not be installed: a 1 stays beside b 1. Never nothing of a."""
    assert settled([option("a", "2", "b>=2"), option("a", "1", "b<2")], [option("b", "1")]) == ["a-1", "b-1"]
    chain = [option("a", "2", "b>=2"), option("a", "1")], [option("b", "2", "c"), option("b", "1")]
    assert settled(*chain) == ["a-1", "b-1"]


def test_a_wheel_that_has_no_other_version_stays() -> None:
    assert settled([option("a", "1", "gone")]) == ["a-1"]


def with_extras(*requires: str) -> dict[str, Provided]:
    """The worker, and `other` 1.0 that requires these."""
    return {**WORKER, "other": Provided(Version("1.0"), "the registry has", Extras(requires, HERE))}


def test_what_an_extra_requires_is_required() -> None:
    """FLOW-236: other[fast] is more than other"""
    other = with_extras(
        "plain-lib", 'click>=9; extra == "fast"', 'Quick_Lib>=2; extra == "fast"', 'no; extra == "slow"'
    )
    assert lacking("other", provided=other) == ""
    assert lacking("other[fast]", provided=other) == (
        "needs click>=9 for other[fast], but this worker has click 8.1; needs Quick_Lib>=2 for other[fast], which "
        "neither this worker nor another wheel provides: register a wheel of it, install it on the worker, or set "
        "PYOCO_WHEEL_INDEX"
    )
    there = {"quick-lib": Provided(Version("2.1"), "this worker has"), "click": Provided(Version("9.0"), "")}
    assert lacking("other[fast]", provided={**other, **there}) == ""
    assert lacking("other[nobody-knows-it]", provided=other) == ""  # as pip has it


def test_extras_of_extras_are_followed_once() -> None:
    """FLOW-236"""
    other = with_extras(
        'other[b]; extra == "a"', 'other[a,c]; extra == "b"', 'deep-lib; extra == "c"', "broken (; extra"
    )
    assert [lack.package for lack in lacks_of(needing("other[a]"), other)] == ["deep-lib"]


def test_an_extra_for_another_system_is_not_required() -> None:
    other = with_extras(
        'winlib; extra == "fast" and sys_platform == "win32"', 'lib; extra == "fast" and os_name ~= "a"'
    )
    assert lacking("other[fast]", provided=other) == ""


def test_the_extras_of_a_wheel_are_known_from_its_own_words() -> None:
    """FLOW-236: whatever way they are spelled"""
    needs = needing("click", 'quick-lib; extra == "Fast_Mode"', 'winlib; sys_platform == "win32"')
    assert [one.name for one in needs.requires] == ["click"]
    assert [one.name for one in needs.extras.of("fast-mode")] == ["quick-lib"]


@pytest.mark.parametrize("condition", ['implementation_name ~= "a"', 'python_version ~= "abc"'])
def test_a_condition_that_compares_what_cannot_be_compared_is_refused(condition: str) -> None:
    with pytest.raises(InvalidWheel, match="the condition of its requirement"):
        needing(f"lib; {condition}")


def test_a_wheel_gives_way_when_what_an_extra_of_another_requires_is_gone() -> None:
    """FLOW-236"""
    fast = option("b", "1", 'c>=2; extra == "fast"')
    a = [option("a", "2", "b[fast]"), option("a", "1")]
    assert settled(a, [fast], [option("c", "2", "gone"), option("c", "1")]) == ["a-1", "b-1", "c-1"]
    assert settled(a, [fast], [option("c", "2")]) == ["a-2", "b-1", "c-2"]


def test_many_wheels_are_settled_by_looking_at_each_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of upgrades that breaks at its end: each gives way because of the next."""
    looks = 0

    def count(needs: Needs, provided: Mapping[str, Provided]) -> tuple[wheel_needs.Lack, ...]:
        nonlocal looks
        looks += 1
        return lacks_of(needs, provided)

    monkeypatch.setattr(wheel_needs, "lacks_of", count)
    size = 300
    chain = [[option(f"p{n:04}", "2", f"p{n + 1:04}>=2"), option(f"p{n:04}", "1")] for n in range(size)]
    chosen = resolve(chain, WORKER)
    assert {one.version for one in chosen.values()} == {Version("1")}
    assert looks <= 2 * size
    provided = provided_by(chosen, WORKER)
    assert not any(unmet(one, provided) for one in chosen.values())
