"""What a wheel needs besides itself, and whether it is there: Requires-Python and Requires-Dist."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from pyoco_server.errors import InvalidWheel

__all__ = [
    "Extras",
    "Lack",
    "Needs",
    "Option",
    "Provided",
    "lacks_of",
    "plain",
    "provided_by",
    "read_needs",
    "resolve",
    "tell_lacks",
    "unmet",
]


@dataclass(frozen=True)
class Extras:
    """What a package requires only when one of its extras is asked for."""

    #: As it stands in its METADATA. It is read when somebody asks: hardly anybody does.
    requires: tuple[str, ...] = ()
    #: The markers of this interpreter.
    here: Mapping[str, str] = field(default_factory=dict)

    def of(self, extra: str) -> list[Requirement]:
        """What this extra requires. What cannot be read is passed over, as is an extra that is none: pip does so."""
        return [one for text in self.requires if (one := _applying(text, self.here, extra)) is not None]


@dataclass(frozen=True)
class Provided:
    """A package that is there."""

    version: Version
    #: Who brings it, to be told to people: "this worker has", "the registry has".
    by: str
    #: Of a wheel that is not here yet, none are known.
    extras: Extras = Extras()


@dataclass(frozen=True)
class Needs:
    """What a wheel says that it needs, as far as it applies to this interpreter."""

    requires: tuple[Requirement, ...] = ()
    extras: Extras = Extras()
    #: Told when this interpreter is not what it needs.
    python_problem: str | None = None


@dataclass(frozen=True)
class Lack:
    """One requirement that is not met."""

    requirement: Requirement
    #: What is there instead, of another version; None: nothing.
    found: Provided | None = None
    #: Whose extra it is that requires this, such as `other-tasks[fast]`; empty: the wheel itself does.
    extra_of: str = ""

    @property
    def package(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def can_be_fetched(self) -> bool:
        """Whether an index could help. One that lies at an address of its own does not come from the index."""
        return self.found is None and self.requirement.url is None


def read_needs(requires: Iterable[str], requires_python: str, here: Mapping[str, str]) -> Needs:
    """`here` holds the markers of this interpreter. Raises InvalidWheel."""
    found, optional = [], []
    for text in requires:
        try:
            requirement = Requirement(text)
            applies = _applies(requirement, here, "")
        except InvalidRequirement as error:
            raise InvalidWheel(f"its requirement {text[:200]!r} cannot be read") from error
        except (UndefinedComparison, UndefinedEnvironmentName) as error:
            raise InvalidWheel(f"the condition of its requirement {text[:200]!r} cannot be read") from error
        if applies:
            found.append(requirement)
        elif "extra" in text:
            optional.append(text)
    python = here["python_full_version"]
    try:
        fits = SpecifierSet(requires_python).contains(python, prereleases=True)
    except InvalidSpecifier as error:
        raise InvalidWheel(f"its Requires-Python {requires_python[:200]!r} cannot be read") from error
    problem = None if fits else f"needs Python {requires_python}, and this worker runs {python}"
    return Needs(tuple(found), Extras(tuple(optional), here), problem)


def _applies(requirement: Requirement, here: Mapping[str, str], extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({**here, "extra": extra})


def _applying(text: str, here: Mapping[str, str], extra: str) -> Requirement | None:
    try:
        requirement = Requirement(text)
        return requirement if _applies(requirement, here, extra) and not _applies(requirement, here, "") else None
    except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName):
        return None


def lacks_of(needs: Needs, provided: Mapping[str, Provided]) -> tuple[Lack, ...]:
    """Which requirements are not met by what is there, by package; O(requirements, and those of their extras)."""
    lacks = []
    left = [(requirement, "") for requirement in needs.requires]
    seen: set[str] = set()
    for requirement, extra_of in left:  # it grows
        name = canonicalize_name(requirement.name)
        there = provided.get(name)
        if there is None:
            lacks.append(Lack(requirement, None, extra_of))
        elif not requirement.specifier.contains(there.version, prereleases=True):
            lacks.append(Lack(requirement, there, extra_of))
        else:
            for extra in sorted(requirement.extras):
                if (asked := f"{name}[{extra}]") not in seen:
                    seen.add(asked)
                    left += [(one, asked) for one in there.extras.of(extra)]
    return tuple(lacks)


def tell_lacks(lacks: Sequence[Lack]) -> str:
    """For people: what is missing, and what they can do."""
    parts = []
    for lack in lacks:
        words = str(plain(lack.requirement)) + (f" for {lack.extra_of}" if lack.extra_of else "")
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

    @property
    def provides(self) -> Provided:
        return Provided(self.version, "the registry has", self.needs.extras)


def resolve(options: Iterable[Sequence[Option]], worker: Mapping[str, Provided]) -> dict[str, Option]:
    """Of each package one option: the first whose needs the others meet, the last if none of them does.

    `options` holds for each package the one that is wanted, then what may stay instead. O(options and requirements):
    when one gives way, only those are looked at again that require it.
    """
    left = {some[0].package: list(some) for some in options if some}
    provided = provided_by({package: some[0] for package, some in left.items()}, worker)
    required_by = _required_by(left)
    waiting = set(left)
    while waiting:
        looked_at, waiting = sorted(waiting), set()
        for package in looked_at:
            some = left[package]
            if len(some) > 1 and unmet(some[0], provided):
                del some[0]
                provided[package] = some[0].provides
                waiting |= {package} | required_by[package] | required_by[_EXTRAS]
    return {package: some[0] for package, some in left.items()}


#: No package has this name. What an extra requires is known when it is looked for: who asks for one counts for all.
_EXTRAS = "[]"


def _required_by(options: Mapping[str, Sequence[Option]]) -> defaultdict[str, set[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for package, some in options.items():
        for requirement in (one for option in some for one in option.needs.requires):
            found[canonicalize_name(requirement.name)].add(package)
            if requirement.extras:
                found[_EXTRAS].add(package)
    return found


def provided_by(chosen: Mapping[str, Option], worker: Mapping[str, Provided]) -> dict[str, Provided]:
    """What is there with these wheels. One comes before what the worker has of its name, as on `sys.path`."""
    return {**worker, **{package: option.provides for package, option in chosen.items()}}


def unmet(option: Option, provided: Mapping[str, Provided]) -> tuple[Lack, ...]:
    """What an option lacks beside all that is there; O(its requirements)."""
    return tuple(lack for lack in lacks_of(option.needs, provided) if lack.package not in option.fetched)
