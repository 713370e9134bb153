"""Declaration, parsing, checks and documentation of settings. The settings are in `config/__init__.py`."""

from __future__ import annotations

import enum
import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyoco_server.core.names import is_tag
from pyoco_server.core.packs.spec import is_pack_name
from pyoco_server.errors import SettingError
from pyoco_server.one_process import memory_problem

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "AGE",
    "ANY_HOST",
    "BYTES",
    "COUNT",
    "FILE",
    "FLAG",
    "HEADER",
    "HOSTS",
    "INDEX",
    "INT64_MAX",
    "INTERVAL",
    "MESSAGE_BYTES",
    "MODULES",
    "NAME",
    "PACKS",
    "PATH",
    "PEPPER",
    "RESOLVER",
    "SECONDS_OR_NONE",
    "SUBJECT",
    "SYNC",
    "TAG",
    "TEST_SETTINGS",
    "URL",
    "USER",
    "Audience",
    "Elsewhere",
    "Setting",
    "ValueKind",
    "check_all",
    "check_apart",
    "choice",
    "declare",
    "hidden_settings",
    "integer",
    "settings",
    "values_in",
    "written",
]

#: Longer waits overflow the underlying timers (threading.TIMEOUT_MAX, JetStream's nanoseconds in 64 bits).
_SECONDS_MAX = 1e9
INT64_MAX = 2**63 - 1
#: Sets settings without a variable of their own in the processes of a test: `name=value`, with commas.
TEST_SETTINGS = "PYOCO_TEST_SETTINGS"
#: Allows any host name.
ANY_HOST = "*"
#: NATS refuses larger messages, whatever its max_payload.
_MESSAGE_BYTES_MAX = 64 * 1024 * 1024

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?", re.ASCII)
_FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_NATS_SERVER = re.compile(
    r"((nats|tls|ws|wss)://)?([^\s@/,]+@)?(\[[0-9A-Fa-f:.]+\]|[^\s@/:,\[\]]+)(:(?P<port>[0-9]{1,5}))?(/\S*)?"
)
_NO_NATS_URL = "is not an address of NATS (several: with commas)"


class Audience(enum.Enum):
    """For whom a variable exists: the table of the reference that lists it."""

    USERS = ""
    #: Timers, limits and names whose default is right for nearly every deployment.
    EXISTING = "rarely changed"
    TESTS = "tests"
    #: Read and checked, without an effect (FLOW-194).
    NOBODY = "nobody"


@dataclass(frozen=True)
class ValueKind:
    """Parses and checks one type of value."""

    #: Raises ValueError with the predicate of a sentence, such as "is not a whole number".
    parse: Callable[[str], object]
    #: Returns the same kind of text, or None if the value is valid.
    problem: Callable[[object], str | None]
    #: Shown if the default does not show the format.
    example: str = ""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One declared setting, as used by tests and documentation."""

    name: str
    default: object
    kind: ValueKind
    #: Letters of `_USERS`.
    used_by: str
    help: str
    #: Hidden in repr and in error messages.
    secret: bool = False
    #: A bad value in the environment causes a warning, and the default is used.
    lenient: bool = False
    #: False: an argument of the constructor only, for tests and for timers that need no tuning.
    has_variable: bool = True
    audience: Audience = Audience.USERS
    #: Prefix of the variable. Variables of the grid have none.
    prefix: str = "PYOCO_"

    @property
    def variable(self) -> str:
        """The name shown to users."""
        return f"{self.prefix}{self.name.upper()}" if self.has_variable else self.name

    def read(self, text: str) -> object:
        """Parse and check a text. Raises SettingError."""
        try:
            return self.check(self.kind.parse(text))
        except SettingError:
            raise
        except ValueError as error:
            raise self.refusal(text, str(error)) from None

    def check(self, value: object) -> object:
        """Return the value unchanged. Raises SettingError if it is not allowed."""
        problem = self.kind.problem(value)
        if problem is not None:
            raise self.refusal(value, problem)
        return value

    def refusal(self, value: object, problem: str) -> SettingError:
        shown = "" if self.secret else f"={str(value)[:80]!r}"
        return SettingError(f"{self.variable}{shown} {problem}; example: {self.variable}={self.example}")

    @property
    def example(self) -> str:
        return self.kind.example or written(self.default)


def written(value: object) -> str:
    """Format a value as in the environment."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.15g}"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def integer(low: int, high: int) -> ValueKind:
    def parse(text: str) -> int:
        if _INTEGER.fullmatch(text.strip()) is None:
            raise ValueError("is not a whole number")
        return int(text)

    def problem(value: object) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return "is not a whole number"
        return None if low <= value <= high else f"must be from {low} to {high}"

    return ValueKind(parse, problem)


def _seconds(low: float) -> ValueKind:
    def parse(text: str) -> float:
        if _DECIMAL.fullmatch(text.strip()) is None:
            raise ValueError("is not a number of seconds")
        return float(text)

    def problem(value: object) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return "is not a number of seconds"
        return None if low <= value <= _SECONDS_MAX else f"must be from {low:g} to {_SECONDS_MAX:.0f} seconds"

    return ValueKind(parse, problem)


def _text(allowed: Callable[[str], bool], problem: str, example: str = "") -> ValueKind:
    return ValueKind(str.strip, lambda value: None if isinstance(value, str) and allowed(value) else problem, example)


def choice(*words: str) -> ValueKind:
    def parse(text: str) -> str:
        return next((word for word in words if word.casefold() == text.strip().casefold()), text)

    return ValueKind(parse, lambda value: None if value in words else f"must be one of {', '.join(words)}")


def _parse_flag(text: str) -> bool:
    try:
        return _FLAGS[text.strip().lower()]
    except KeyError:
        raise ValueError(f"must be one of {', '.join(_FLAGS)}") from None


def _parse_modules(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _parse_packs(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.replace(",", " ").split()))
    if not names and text.strip():  # an empty value counts as unset, which means all packs
        raise ValueError("names no pack")
    return names


def _modules_problem(value: object) -> str | None:
    if not isinstance(value, tuple):
        return "is not a tuple of module names"
    bad = [name for name in value if not (isinstance(name, str) and all(map(str.isidentifier, name.split("."))))]
    return f"has {bad[0]!r}, which is not a module name" if bad else None


def _parse_hosts(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text.lower().replace(",", " ").split()))


_HOST = re.compile(r"[a-z0-9_-]([a-z0-9._-]{0,251}[a-z0-9_-])?|\[[0-9a-f:.]{2,45}\]", re.ASCII)


def _hosts_problem(value: object) -> str | None:
    if not isinstance(value, tuple):
        return "is not a tuple of host names"
    bad = [name for name in value if not (isinstance(name, str) and (name == ANY_HOST or _HOST.fullmatch(name)))]
    return f"has {str(bad[0])[:80]!r}, which is not a host name in lower case without a port" if bad else None


#: A JetStream in the memory of this process, for tests (`ports/nats/memory`).
_MEMORY_SERVER = re.compile(r"memory://[A-Za-z0-9_-]{1,200}", re.ASCII)


def _nats_url_problem(value: object) -> str | None:
    if not isinstance(value, str):
        return _NO_NATS_URL
    parts = [part.strip() for part in value.split(",")]
    if any(part.startswith("memory://") for part in parts):
        if _MEMORY_SERVER.fullmatch(value):
            return memory_problem()
        return "must be one address of the form memory://name, with letters, digits, '_' and '-'"
    servers = [_NATS_SERVER.fullmatch(part) for part in parts]
    known = all(server is not None and 0 < int(server["port"] or 4222) < 65536 for server in servers)
    return None if known else _NO_NATS_URL


def _is_subject_prefix(text: str) -> bool:
    """Subjects that start with `$` are reserved by NATS."""
    tokens = text.split(".")
    allowed = text.isprintable() and not set(text) & set(" *>") and not text.startswith("$")
    return allowed and all(tokens) and len(text) <= 200


def _matches(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern, re.ASCII)
    return lambda text: compiled.fullmatch(text) is not None


FLAG = ValueKind(_parse_flag, lambda value: None if isinstance(value, bool) else "is not a boolean")
#: NATS sums the limits of its streams in 64 bits.
BYTES = integer(1, 2**62)
MESSAGE_BYTES = integer(1, _MESSAGE_BYTES_MAX)
COUNT = integer(1, 2**31 - 1)
#: Above zero, and long enough for a loop to keep up.
INTERVAL = _seconds(0.001)
SECONDS_OR_NONE = _seconds(0.0)
#: The server refuses a shorter max age.
AGE = _seconds(0.1)
PATH = _text(lambda text: bool(text.strip()) and "\0" not in text, "is not a path")
#: An optional file.
FILE = _text(lambda text: "\0" not in text, "is not the path of a file", "/etc/pyoco/file")
NAME = _text(_matches("[A-Za-z0-9_-]{1,200}"), "may hold letters, digits, '_' and '-' only, 200 at most")
SUBJECT = _text(_is_subject_prefix, "must be words with single dots between, without white space, '*', '>' or '$'")
TAG = _text(is_tag, "may hold letters, digits, '_' and '-' only, 128 at most")
URL = ValueKind(str.strip, _nats_url_problem)
HEADER = _text(_matches(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}"), "is not the name of an HTTP header")
HOSTS = ValueKind(_parse_hosts, _hosts_problem, "runs.example.org,runs")
SYNC = _text(_matches("always|[1-9][0-9]{0,5}(ms|s|m)"), "must be 'always' or a time such as 500ms, 1s, 2m")
USER = _text(_matches(r"[^\s:]{0,200}"), "may hold no white space and no ':'", "pyoco-worker")
PEPPER = ValueKind(str, lambda value: None if isinstance(value, str) else "is not a text", "a-long-random-text")
INDEX = _text(
    _matches(r"none|default|(https?|file)://[^\s]{1,2000}"), "must be none, default or the address of a package index"
)
PACKS = ValueKind(
    _parse_packs,
    lambda value: (
        None
        if isinstance(value, tuple) and all(isinstance(name, str) and is_pack_name(name) for name in value)
        else "must hold names of packs, with commas between"
    ),
    "decision,url",
)
MODULES = ValueKind(_parse_modules, _modules_problem, "my_tasks,my_company.flows")
#: An optional callable.
RESOLVER = _text(_matches(r"([\w.]+:[\w.]+)?"), "is not module:callable", "my_flows:resolve")


def declare(default: Any, kind: ValueKind, used_by: str, text: str, **more: bool | str | Audience) -> Any:
    """Declare a dataclass field with its metadata. Returns `Any`, so that the field's own annotation decides."""
    metadata = {"kind": kind, "used_by": used_by, "help": text, **more}
    return field(default=default, metadata=metadata, repr=not more.get("secret", False))


#: A variable that another part reads: who uses it, its meaning, and for whom it is if not for all users.
Elsewhere = tuple[str, str] | tuple[str, str, Audience]

_known: dict[type[DataclassInstance], tuple[Setting, ...]] = {}


def settings(cls: type[DataclassInstance]) -> tuple[Setting, ...]:
    """Return the settings that `cls` declares, in order. Cached."""
    if cls not in _known:
        declared = (each for each in fields(cls) if each.metadata)
        _known[cls] = tuple(Setting(name=each.name, default=each.default, **each.metadata) for each in declared)
    return _known[cls]


def values_in(variables: Mapping[str, str], cls: type[DataclassInstance]) -> dict[str, Any]:
    """Parse the variables that belong to settings of `cls`. Raises SettingError."""
    return hidden_settings(variables, cls) | {
        setting.name: setting.read(variables[setting.variable])
        for setting in settings(cls)
        if setting.has_variable and setting.variable in variables
    }


def hidden_settings(variables: Mapping[str, str], cls: type[DataclassInstance]) -> dict[str, Any]:
    """Return the settings of `cls` without a variable that TEST_SETTINGS sets. Raises SettingError."""
    text = variables.get(TEST_SETTINGS, "")
    if not text.strip():
        return {}
    if not all(map(_is_loopback, (variables.get("PYOCO_NATS_URL") or "127.0.0.1").split(","))):
        raise SettingError(f"{TEST_SETTINGS} is for tests, and PYOCO_NATS_URL names another machine; unset it")
    pairs = dict(part.strip().partition("=")[::2] for part in text.split(","))
    return {
        setting.name: setting.read(pairs[setting.name])
        for setting in settings(cls)
        if setting.name in pairs and not setting.has_variable and not isinstance(setting.default, bool)
    }


def _is_loopback(server: str) -> bool:
    if server.startswith("memory://"):
        return True
    host = urlsplit(server if "://" in server else f"nats://{server}").hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_all(config: DataclassInstance) -> None:
    """Check every value. Raises SettingError."""
    for setting in settings(type(config)):
        setting.check(getattr(config, setting.name))


def check_apart(config: DataclassInstance, *names: str) -> None:
    """Check that no two of these are equal or nested as subjects. Raises SettingError."""
    seen: dict[str, Setting] = {}
    for setting in settings(type(config)):
        if setting.name not in names:
            continue
        value = str(getattr(config, setting.name))
        for other, owner in seen.items():
            if f"{value}.".startswith(f"{other}.") or f"{other}.".startswith(f"{value}."):
                raise setting.refusal(value, f"collides with {owner.variable}={other!r}")
        seen[value] = setting
