"""The requirements of a wheel, and whether they are met: Requires-Python and Requires-Dist."""

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
    """The requirements of a package that apply only if one of its extras is requested."""

    #: The text from METADATA. It is parsed on demand, which is rare.
    requires: tuple[str, ...] = ()
    #: The environment markers of this interpreter.
    here: Mapping[str, str] = field(default_factory=dict)

    def of(self, extra: str) -> list[Requirement]:
        """Return the requirements of this extra. Invalid requirements and unknown extras are ignored, as pip does."""
        return [one for text in self.requires if (one := _applying(text, self.here, extra)) is not None]


@dataclass(frozen=True)
class Provided:
    """An available package."""

    version: Version
    #: Who provides it, as the start of a message: "this worker has", "the registry has".
    by: str
    #: Not known for a wheel that is not installed yet.
    extras: Extras = Extras()


@dataclass(frozen=True)
class Needs:
    """The requirements of a wheel that apply to this interpreter."""

    requires: tuple[Requirement, ...] = ()
    extras: Extras = Extras()
    #: A message, set if this interpreter does not meet Requires-Python.
    python_problem: str | None = None


@dataclass(frozen=True)
class Lack:
    """One unmet requirement."""

    requirement: Requirement
    #: The available package with an unsuitable version. None: the package is not available.
    found: Provided | None = None
    #: The extra that requires it, such as `other-tasks[fast]`; empty: the wheel itself requires it.
    extra_of: str = ""

    @property
    def package(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def can_be_fetched(self) -> bool:
        """Return whether an index could provide it. A requirement with a URL of its own does not come from the
        index."""
        return self.found is None and self.requirement.url is None


def read_needs(requires: Iterable[str], requires_python: str, here: Mapping[str, str]) -> Needs:
    """Parse the requirements of a wheel. `here` holds the markers of this interpreter. Raises InvalidWheel."""
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
    """Return the requirements that the available packages do not meet. O(requirements, and those of their extras)."""
    lacks = []
    left = [(requirement, "") for requirement in needs.requires]
    seen: set[str] = set()
    for requirement, extra_of in left:  # the list grows
        name = canonicalize_name(requirement.name)
        available = provided.get(name)
        if available is None:
            lacks.append(Lack(requirement, None, extra_of))
        elif not requirement.specifier.contains(available.version, prereleases=True):
            lacks.append(Lack(requirement, available, extra_of))
        else:
            for extra in sorted(requirement.extras):
                if (extra_name := f"{name}[{extra}]") not in seen:
                    seen.add(extra_name)
                    left += [(one, extra_name) for one in available.extras.of(extra)]
    return tuple(lacks)


def tell_lacks(lacks: Sequence[Lack]) -> str:
    """Return a message for users: what is missing, and what to do."""
    parts = []
    for lack in lacks:
        needed = str(plain(lack.requirement)) + (f" for {lack.extra_of}" if lack.extra_of else "")
        if lack.found is not None:
            parts.append(f"needs {needed}, but {lack.found.by} {lack.package} {lack.found.version}")
        elif lack.requirement.url is not None:
            parts.append(f"needs {needed}, and nothing is fetched from such an address: register a wheel of it")
        else:
            parts.append(
                f"needs {needed}, which neither this worker nor another wheel provides: register a wheel of it, "
                "install it on the worker, or set PYOCO_WHEEL_INDEX"
            )
    return "; ".join(parts)


def plain(requirement: Requirement) -> Requirement:
    """Return the requirement without its marker, which has been evaluated already."""
    copy = Requirement(str(requirement))
    copy.marker = None
    return copy


@dataclass(frozen=True)
class Option:
    """One installed wheel that could be the version of its package that runs import."""

    wheel_name: str
    package: str
    version: Version
    needs: Needs
    #: Packages that were downloaded for it.
    fetched: frozenset[str] = frozenset()

    @property
    def provides(self) -> Provided:
        return Provided(self.version, "the registry has", self.needs.extras)


def resolve(options: Iterable[Sequence[Option]], worker: Mapping[str, Provided]) -> dict[str, Option]:
    """Choose one option per package: the first whose requirements the others meet, or the last one if there is none.

    `options` holds for each package the wanted wheel first, then its possible replacements. O(options and
    requirements): when an option is replaced, only the packages that require it are checked again.
    """
    left = {some[0].package: list(some) for some in options if some}
    provided = provided_by({package: some[0] for package, some in left.items()}, worker)
    required_by = _required_by(left)
    waiting = set(left)
    while waiting:
        checked, waiting = sorted(waiting), set()
        for package in checked:
            some = left[package]
            if len(some) > 1 and unmet(some[0], provided):
                del some[0]
                provided[package] = some[0].provides
                waiting |= {package} | required_by[package] | required_by[_EXTRAS]
    return {package: some[0] for package, some in left.items()}


#: Not a valid package name. The requirements of an extra are known only once it is evaluated, so a wheel that requests
#: extras is treated as requiring every package.
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
    """Return the packages available with these wheels. A wheel shadows the worker's own package of that name, as on
    `sys.path`."""
    return {**worker, **{package: option.provides for package, option in chosen.items()}}


def unmet(option: Option, provided: Mapping[str, Provided]) -> tuple[Lack, ...]:
    """Return the requirements of an option that the available packages do not meet. O(its requirements)."""
    return tuple(lack for lack in lacks_of(option.needs, provided) if lack.package not in option.fetched)
