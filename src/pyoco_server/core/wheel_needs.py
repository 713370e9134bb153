"""What a wheel needs besides itself, and whether it is there: Requires-Python and Requires-Dist."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from pyoco_server.errors import InvalidWheel

__all__ = ["Lack", "Needs", "Option", "Provided", "lacks_of", "plain", "read_needs", "settle", "tell_lacks", "unmet"]


@dataclass(frozen=True)
class Provided:
    """A package that is there."""

    version: Version
    #: Who brings it, to be told to people: "this worker has", "the registry has".
    by: str


@dataclass(frozen=True)
class Needs:
    """What a wheel says that it needs, as far as it applies to this interpreter."""

    requires: tuple[Requirement, ...] = ()
    #: Told when this interpreter is not what it needs.
    python_problem: str | None = None


@dataclass(frozen=True)
class Lack:
    """One requirement that is not met."""

    requirement: Requirement
    #: What is there instead, of another version; None: nothing.
    found: Provided | None = None

    @property
    def package(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def can_be_fetched(self) -> bool:
        """Whether an index could help. One that lies at an address of its own does not come from the index."""
        return self.found is None and self.requirement.url is None


def read_needs(requires: Iterable[str], requires_python: str, here: Mapping[str, str]) -> Needs:
    """`here` holds the markers of this interpreter. What only an extra needs is left out. Raises InvalidWheel."""
    found = []
    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            raise InvalidWheel(f"its requirement {text[:200]!r} cannot be read") from error
        if requirement.marker is None or requirement.marker.evaluate({**here, "extra": ""}):
            found.append(requirement)
    python = here["python_full_version"]
    try:
        fits = SpecifierSet(requires_python).contains(python, prereleases=True)
    except InvalidSpecifier as error:
        raise InvalidWheel(f"its Requires-Python {requires_python[:200]!r} cannot be read") from error
    return Needs(tuple(found), None if fits else f"needs Python {requires_python}, and this worker runs {python}")


def lacks_of(needs: Needs, provided: Mapping[str, Provided]) -> tuple[Lack, ...]:
    """Which requirements are not met by what is there, by package; O(requirements)."""
    lacks = []
    for requirement in needs.requires:
        there = provided.get(canonicalize_name(requirement.name))
        if there is None:
            lacks.append(Lack(requirement))
        elif not requirement.specifier.contains(there.version, prereleases=True):
            lacks.append(Lack(requirement, there))
    return tuple(lacks)


def tell_lacks(lacks: Sequence[Lack]) -> str:
    """For people: what is missing, and what they can do."""
    parts = []
    for lack in lacks:
        words = str(plain(lack.requirement))
        if lack.found is not None:
            parts.append(f"needs {words}, but {lack.found.by} {lack.package} {lack.found.version}")
        elif lack.requirement.url is not None:
            parts.append(f"needs {words}, and nothing is fetched from such an address: register a wheel of it")
        else:
            parts.append(
                f"needs {words}, which neither this worker nor another wheel provides: register a wheel of it, "
                "install it on the worker, or set PYOCO_WHEEL_INDEX"
            )
    return "; ".join(parts)


def plain(requirement: Requirement) -> Requirement:
    """The requirement without the condition under which it applies: that has been looked at."""
    copy = Requirement(str(requirement))
    copy.marker = None
    return copy


@dataclass(frozen=True)
class Option:
    """One installed wheel that could be the one of its package that runs see."""

    wheel_name: str
    package: str
    version: Version
    needs: Needs
    #: Packages that were fetched for it.
    fetched: frozenset[str] = frozenset()


def settle(options: Iterable[Sequence[Option]], worker: Mapping[str, Provided]) -> dict[str, Option]:
    """Of each package one option: the first whose needs the others meet, the last if none of them does.

    `options` holds for each package the one that is wanted, then what may stay instead. O(packages x options).
    """
    left = {some[0].package: list(some) for some in options if some}
    moved = True
    while moved:
        moved = False
        for package in sorted(left):
            if len(left[package]) > 1 and unmet(
                left[package][0], {name: some[0] for name, some in left.items()}, worker
            ):
                del left[package][0]
                moved = True
    return {package: some[0] for package, some in left.items()}


def unmet(option: Option, chosen: Mapping[str, Option], worker: Mapping[str, Provided]) -> tuple[Lack, ...]:
    """What an option lacks beside these others."""
    provided = {**worker, **{name: Provided(other.version, "the registry has") for name, other in chosen.items()}}
    return tuple(lack for lack in lacks_of(option.needs, provided) if lack.package not in option.fetched)
