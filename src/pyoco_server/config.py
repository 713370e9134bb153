"""Every setting, declared once: its default, its bounds, who uses it and what it means.

Option, then environment, then dotenv file, then default (FLOW-518). A value that does not parse stops the process and
says which variable it was: a silent default hides a typo. `docs/reference/settings.md` is printed by
`python -m pyoco_server.config`; a test compares.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self, cast

from pyoco_server.core.names import is_tag
from pyoco_server.errors import SettingError

__all__ = ["LogSettings", "NatsBackendConfig", "Setting", "read_dotenv", "reference", "settings", "unknown_variables"]

#: Longer waits overflow the timers below us (threading.TIMEOUT_MAX, JetStream's nanoseconds in 64 bits).
_SECONDS_MAX = 1e9
_INT64_MAX = 2**63 - 1
#: NATS itself refuses messages above this, whatever its max_payload says.
_MESSAGE_BYTES_MAX = 64 * 1024 * 1024

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?", re.ASCII)
_FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_NATS_SERVER = re.compile(
    r"((nats|tls|ws|wss)://)?([^\s@/,]+@)?(\[[0-9A-Fa-f:.]+\]|[^\s@/:,\[\]]+)(:(?P<port>[0-9]{1,5}))?(/\S*)?"
)


@dataclass(frozen=True)
class Kind:
    """How a value is read from text, and what is wrong with a value, if anything."""

    #: Raises ValueError with half a sentence: "is not a whole number".
    parse: Callable[[str], object]
    #: The same half sentence, or None.
    problem: Callable[[object], str | None]
    #: Shown when the default does not show how to write one.
    example: str = ""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One declared setting, as tests and documents see it."""

    name: str
    default: object
    kind: Kind
    #: Letters of `_USERS`.
    used_by: str
    help: str
    #: Neither in repr nor in error messages.
    secret: bool = False
    #: A bad value in the environment is a warning, and the default is used.
    lenient: bool = False
    has_variable: bool = True

    @property
    def variable(self) -> str:
        """What the user knows it by."""
        return f"PYOCO_{self.name.upper()}" if self.has_variable else self.name

    def read(self, text: str) -> object:
        """The value this text stands for. Raises SettingError."""
        try:
            return self.check(self.kind.parse(text))
        except SettingError:
            raise
        except ValueError as error:
            raise self.refusal(text, str(error)) from None

    def check(self, value: object) -> object:
        """The same value. Raises SettingError when it is not allowed."""
        problem = self.kind.problem(value)
        if problem is not None:
            raise self.refusal(value, problem)
        return value

    def refusal(self, value: object, problem: str) -> SettingError:
        shown = "" if self.secret else f"={str(value)[:80]!r}"
        return SettingError(f"{self.variable}{shown} {problem}; example: {self.variable}={self.example}")

    @property
    def example(self) -> str:
        return self.kind.example or _written(self.default)


def _written(value: object) -> str:
    """A value as one would write it in the environment."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.15g}"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _whole(low: int, high: int) -> Kind:
    def parse(text: str) -> int:
        if _INTEGER.fullmatch(text.strip()) is None:
            raise ValueError("is not a whole number")
        return int(text)

    def problem(value: object) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return "is not a whole number"
        return None if low <= value <= high else f"must be from {low} to {high}"

    return Kind(parse, problem)


def _seconds(low: float) -> Kind:
    def parse(text: str) -> float:
        if _DECIMAL.fullmatch(text.strip()) is None:
            raise ValueError("is not a number of seconds")
        return float(text)

    def problem(value: object) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return "is not a number of seconds"
        return None if low <= value <= _SECONDS_MAX else f"must be from {low:g} to {_SECONDS_MAX:.0f} seconds"

    return Kind(parse, problem)


def _text(allowed: Callable[[str], bool], problem: str, example: str = "") -> Kind:
    return Kind(str.strip, lambda value: None if isinstance(value, str) and allowed(value) else problem, example)


def _choice(*words: str) -> Kind:
    def parse(text: str) -> str:
        return next((word for word in words if word.casefold() == text.strip().casefold()), text)

    return Kind(parse, lambda value: None if value in words else f"must be one of {', '.join(words)}")


def _parse_flag(text: str) -> bool:
    try:
        return _FLAGS[text.strip().lower()]
    except KeyError:
        raise ValueError(f"must be one of {', '.join(_FLAGS)}") from None


def _parse_modules(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _modules_problem(value: object) -> str | None:
    if not isinstance(value, tuple):
        return "is not a tuple of module names"
    bad = [name for name in value if not (isinstance(name, str) and all(map(str.isidentifier, name.split("."))))]
    return f"has {bad[0]!r}, which is not a module name" if bad else None


def _is_nats_url(text: str) -> bool:
    servers = [_NATS_SERVER.fullmatch(part.strip()) for part in text.split(",")]
    return all(server is not None and 0 < int(server["port"] or 4222) < 65536 for server in servers)


def _is_subject_prefix(text: str) -> bool:
    """`$` opens the subjects NATS keeps for itself."""
    tokens = text.split(".")
    whole = text.isprintable() and not set(text) & set(" *>") and not text.startswith("$")
    return whole and all(tokens) and len(text) <= 200


def _matches(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern, re.ASCII)
    return lambda text: compiled.fullmatch(text) is not None


_FLAG = Kind(_parse_flag, lambda value: None if isinstance(value, bool) else "is not a boolean")
_BYTES = _whole(1, _INT64_MAX)
_MESSAGE_BYTES = _whole(1, _MESSAGE_BYTES_MAX)
_COUNT = _whole(1, 2**31 - 1)
#: Above zero, and no shorter than a loop can keep up with.
_INTERVAL = _seconds(0.001)
_SECONDS_OR_NONE = _seconds(0.0)
#: The server refuses a shorter max age.
_AGE = _seconds(0.1)
_PATH = _text(lambda text: bool(text.strip()) and "\0" not in text, "is not a path")
_NAME = _text(_matches("[A-Za-z0-9_-]{1,200}"), "may hold letters, digits, '_' and '-' only, 200 at most")
_SUBJECT = _text(_is_subject_prefix, "must be words with single dots between, without white space, '*', '>' or '$'")
_TAG = _text(is_tag, "may hold letters, digits, '_' and '-' only, 128 at most")
_URL = _text(_is_nats_url, "is not an address of NATS (several: with commas)")
_HEADER = _text(_matches(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}"), "is not the name of an HTTP header")
_SYNC = _text(_matches("always|[1-9][0-9]{0,5}(ms|s|m)"), "must be 'always' or a time such as 500ms, 1s, 2m")
_PEPPER = Kind(str, lambda value: None if isinstance(value, str) else "is not a text", "a-long-random-text")
_MODULES = Kind(_parse_modules, _modules_problem, "my_tasks,my_company.flows")

_USERS = {
    "G": "gateway",
    "W": "worker",
    "K": "keeper",
    "A": "admin command",
    "C": "client",
    "U": "`pyoco-server up`",
    "E": "engine",
}


def _setting(default: Any, kind: Kind, used_by: str, text: str, **more: bool) -> Any:
    """A dataclass field that knows what it is. `Any`, so that the field's own annotation decides."""
    metadata = {"kind": kind, "used_by": used_by, "help": text, **more}
    return field(default=default, metadata=metadata, repr=not more.get("secret", False))


@dataclass(frozen=True, kw_only=True)
class NatsBackendConfig:
    """The settings of a backend (FLOW-386). Wrong values raise SettingError, a ValueError that names the variable."""

    # Where NATS is, and what our things are called there.
    nats_url: str = _setting(
        "nats://127.0.0.1:4222", _URL, "GWKA", "Address of NATS; several with commas between.", secret=True
    )
    jetstream_replicas: int = _setting(1, _whole(1, 5), "GWKA", "Copies of each stream and bucket that we create.")
    nats_sync: str = _setting(
        "1s", _SYNC, "U", "How often the embedded NATS syncs to disk: a time such as `500ms`, or `always`."
    )
    data_dir: str = _setting(".pyoco", _PATH, "GU", "Directory for what a process keeps on its own disk.")
    work_stream: str = _setting("PYOCO_WORK", _NAME, "GWK", "Stream of jobs.", has_variable=False)
    work_subject_prefix: str = _setting("pyoco.work", _SUBJECT, "GWK", "Prefix of job subjects.")
    default_tag: str = _setting("default", _TAG, "GW", "Tag of submissions and workers that name none.")
    runs_kv_bucket: str = _setting("pyoco_runs", _NAME, "GWK", "Bucket of run snapshots.")
    workers_kv_bucket: str = _setting("pyoco_workers", _NAME, "GWK", "Bucket of the worker registry.")
    workers_kv_ttl_sec: float = _setting(15.0, _INTERVAL, "GWK", "Kept for compatibility; does nothing (FLOW-194).")

    # Runs and workers.
    runs_retention_sec: float = _setting(
        2_592_000.0, _SECONDS_OR_NONE, "K", "Ended runs and their artifacts are removed after this time; 0 = never."
    )
    run_timeout_sec: float = _setting(0.0, _SECONDS_OR_NONE, "W", "A run that takes longer fails; 0 = no limit.")
    run_heartbeat_interval_sec: float = _setting(1.0, _INTERVAL, "W", "Time between heartbeats of a run.")
    worker_heartbeat_interval_sec: float = _setting(5.0, _INTERVAL, "W", "Time between heartbeats of a worker.")
    worker_disconnect_timeout_sec: float = _setting(
        20.0, _INTERVAL, "GK", "A worker that has been silent for longer counts as disconnected."
    )
    worker_slots: int = _setting(0, _whole(0, 4096), "W", "Runs at once on a worker; 0 = as many as it has CPUs.")
    cancel_grace_period_sec: float = _setting(
        30.0, _SECONDS_OR_NONE, "W", "Time a cancelled run gets to end by itself, before it is killed."
    )
    drain_timeout_sec: float = _setting(
        0.0, _SECONDS_OR_NONE, "W", "Time running runs get when a worker stops; 0 = for as long as they take."
    )
    host_memory_max_bytes: int = _setting(
        0, _whole(0, _INT64_MAX), "W", "Memory a host process may use; 0 = 80 % of the machine's or the cgroup's."
    )
    host_runs_max: int = _setting(10_000, _COUNT, "W", "A host process is replaced after so many runs.")
    callable_allow: tuple[str, ...] = _setting(
        (), _MODULES, "W", "More modules that a `flow.yaml` may call, with commas or spaces between."
    )

    # Consumers and dead letters.
    consumer_ack_wait_sec: float = _setting(30.0, _INTERVAL, "W", "AckWait of a consumer that we create.")
    consumer_max_deliver: int = _setting(20, _COUNT, "W", "MaxDeliver of a consumer that we create.")
    consumer_max_ack_pending: int = _setting(200, _COUNT, "W", "MaxAckPending of a consumer that we create.")
    ack_progress_interval_sec: float = _setting(
        10.0, _INTERVAL, "W", "Time between in-progress acks; below AckWait, half of it is a good choice."
    )
    dlq_stream: str = _setting("PYOCO_DLQ", _NAME, "GWK", "Stream of dead letters.")
    dlq_subject_prefix: str = _setting("pyoco.dlq", _SUBJECT, "GWK", "Prefix of dead-letter subjects.")
    dlq_publish_execution_error: bool = _setting(True, _FLAG, "W", "Failed executions leave a dead letter, too.")
    dlq_max_age_sec: float = _setting(604_800.0, _AGE, "GWK", "Dead letters are removed after this time.")
    dlq_max_msgs: int = _setting(100_000, _BYTES, "GWK", "Dead letters kept at most; the oldest go first.")
    dlq_max_bytes: int = _setting(536_870_912, _BYTES, "GWK", "Bytes of dead letters kept at most.")

    # Sizes and wheels.
    max_run_snapshot_bytes: int = _setting(262_144, _MESSAGE_BYTES, "GWK", "A larger snapshot is compacted.")
    workflow_yaml_max_bytes: int = _setting(262_144, _MESSAGE_BYTES, "G", "A larger `flow.yaml` is refused.")
    wheel_object_store_bucket: str = _setting("pyoco_wheels", _NAME, "GW", "Object store of wheels.")
    wheel_max_bytes: int = _setting(536_870_912, _BYTES, "G", "A larger wheel is refused.")
    wheel_sync_enabled: bool = _setting(False, _FLAG, "W", "Workers install the wheels of the registry.")
    wheel_sync_dir: str = _setting(".pyoco/wheels", _PATH, "W", "Directory of a worker's wheels.")
    wheel_sync_interval_sec: float = _setting(10.0, _INTERVAL, "W", "Time between looks at the wheel registry.")
    wheel_install_timeout_sec: float = _setting(180.0, _INTERVAL, "W", "Time one installation of wheels may take.")
    wheel_history_kv_bucket: str = _setting("pyoco_wheel_history", _NAME, "G", "Bucket of the wheel history.")
    wheel_history_ttl_sec: float = _setting(7_776_000.0, _AGE, "G", "The wheel history is kept for this time.")

    # Who may come in, and what they see.
    http_auth_mode: Literal["none", "api_key"] = _setting(
        "none", _choice("none", "api_key"), "G", "`api_key`: every request needs a key. `none`: open to everyone."
    )
    http_api_key_header: str = _setting("X-API-Key", _HEADER, "G", "Header that carries the API key.")
    auth_kv_bucket: str = _setting("pyoco_auth", _NAME, "GA", "Bucket of API key records.")
    auth_pepper: str = _setting(
        "", _PEPPER, "GA", "Secret mixed into the hashes of API keys; keep it from workers.", secret=True
    )
    dashboard_lang: Literal["auto", "ja", "en"] = _setting(
        "auto", _choice("auto", "ja", "en"), "G", "Language of the dashboard; `auto` = the server's.", lenient=True
    )
    dashboard_read_only: bool = _setting(False, _FLAG, "G", "The dashboard shows and does not act.")

    def __post_init__(self) -> None:
        _check_all(self)
        if self.ack_progress_interval_sec >= self.consumer_ack_wait_sec:  # FLOW-313
            raise SettingError(
                f"PYOCO_ACK_PROGRESS_INTERVAL_SEC={_written(self.ack_progress_interval_sec)} must be below "
                f"PYOCO_CONSUMER_ACK_WAIT_SEC={_written(self.consumer_ack_wait_sec)}; "
                f"example: PYOCO_ACK_PROGRESS_INTERVAL_SEC={_written(self.consumer_ack_wait_sec / 2)}"
            )
        # Shared names would mix records of two kinds in one place, and NATS refuses streams whose subjects overlap.
        _check_apart(self, "work_stream", "dlq_stream")
        _check_apart(self, "runs_kv_bucket", "workers_kv_bucket", "wheel_history_kv_bucket", "auth_kv_bucket")
        _check_apart(self, "work_subject_prefix", "dlq_subject_prefix")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: object) -> Self:
        """Read the environment, after the dotenv file (FLOW-387). `overrides` are command-line options; None is none.

        Without `environ` the file's variables also go into `os.environ`, for the engine and for child processes.
        """
        variables = _with_dotenv(environ)
        given = {name: value for name, value in overrides.items() if value is not None}
        values: dict[str, Any] = {}
        for setting in settings(cls):
            value = given.pop(setting.name, None)
            if isinstance(value, str):
                values[setting.name] = setting.read(value)
            elif value is not None:
                values[setting.name] = value
            elif setting.has_variable and setting.variable in variables:
                values[setting.name] = _from_variable(setting, variables[setting.variable])
        return cls(**values, **cast("dict[str, Any]", given))

    @property
    def slots(self) -> int:
        """Runs at once on a worker, resolved: `PYOCO_WORKER_SLOTS`, or the CPUs this process may use."""
        return self.worker_slots or _cpu_count()

    def language(self, environ: Mapping[str, str] | None = None) -> Literal["ja", "en"]:
        """The dashboard's language (FLOW-254, FLOW-256)."""
        if self.dashboard_lang != "auto":
            return self.dashboard_lang
        variables = os.environ if environ is None else environ
        locale = next(filter(None, map(variables.get, ("LC_ALL", "LC_MESSAGES", "LANG"))), "")
        return "ja" if re.split(r"[_.@-]", locale.lower())[0] in {"ja", "japanese"} else "en"


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """How we log. `from_env` never stops the program: it falls back, and keeps what was wrong (FLOW-530)."""

    log_level: str = _setting(
        "INFO", _choice("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"), "GWK", "Least level that is logged."
    )
    log_format: Literal["json", "text"] = _setting(
        "json", _choice("json", "text"), "GWK", "`json`: one object per line. `text`: for the eye."
    )
    log_utc: bool = _setting(True, _FLAG, "GWK", "Log times in UTC, not in local time.")
    log_include_traceback: bool = _setting(True, _FLAG, "GWK", "Tracebacks in logs.")
    #: What was wrong in the environment; `configure_logging` reports it as ERR-PYOCO-0013.
    problems: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        _check_all(self)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read the environment after the dotenv file. Never raises; a bad value leaves its default and a problem."""
        problems: list[str] = []
        values: dict[str, Any] = {}
        try:
            variables = _with_dotenv(environ)
        except SettingError as error:
            problems.append(str(error))
            variables = os.environ if environ is None else environ
        for setting in settings(cls):
            try:
                if setting.variable in variables:
                    values[setting.name] = setting.read(variables[setting.variable])
            except SettingError as error:
                problems.append(str(error))
        return cls(**values, problems=tuple(problems))


@dataclass(frozen=True, kw_only=True)
class DotenvSettings:
    """Where more variables are."""

    load_dotenv: bool = _setting(True, _FLAG, "GWKA", "Read a dotenv file first.")
    env_file: str = _setting(".env", _PATH, "GWKA", "That file. A missing one is no error.")


#: Variables that other parts read; here for the typo guard and the reference.
_ELSEWHERE = {
    "PYOCO_SERVER_URL": ("C", "Address of the gateway."),
    "PYOCO_API_KEY": ("C", "API key the client sends."),
    "PYOCO_DISCOVERY_MODULES": ("WE", "More modules to scan for tasks; read by the engine."),
    "PYOCO_CUTE": ("WE", "The engine's way of printing."),
}


def settings(cls: type[NatsBackendConfig | LogSettings | DotenvSettings]) -> Iterator[Setting]:
    """Everything `cls` declares, in order."""
    for each in fields(cls):
        if each.metadata:
            yield Setting(name=each.name, default=each.default, **each.metadata)


def unknown_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that look like a slip of the pen, each with the name that was probably meant. The caller logs.

    A `PYOCO_*` name that resembles none of ours is left alone: it may belong to somebody's tasks.
    """
    known = {*_ELSEWHERE, *(s.variable for cls in _DECLARED for s in settings(cls) if s.has_variable)}
    strangers = (name for name in sorted(environ) if name.upper().startswith("PYOCO") and name not in known)
    nearest = ((name, difflib.get_close_matches(name.upper(), sorted(known), n=1, cutoff=0.85)) for name in strangers)
    return {name: close[0] for name, close in nearest if close}


_DECLARED: tuple[type[NatsBackendConfig | LogSettings | DotenvSettings], ...] = (
    NatsBackendConfig,
    LogSettings,
    DotenvSettings,
)


def _check_all(config: NatsBackendConfig | LogSettings | DotenvSettings) -> None:
    for setting in settings(type(config)):
        setting.check(getattr(config, setting.name))


def _check_apart(config: NatsBackendConfig, *names: str) -> None:
    """No two of these may be equal, or lie below each other as subjects do."""
    seen: dict[str, Setting] = {}
    for setting in settings(type(config)):
        if setting.name not in names:
            continue
        value = str(getattr(config, setting.name))
        for other, owner in seen.items():
            if f"{value}.".startswith(f"{other}.") or f"{other}.".startswith(f"{value}."):
                raise setting.refusal(value, f"collides with {owner.variable}={other!r}")
        seen[value] = setting


def _from_variable(setting: Setting, text: str) -> object:
    try:
        return setting.read(text)
    except SettingError as error:
        if not setting.lenient:
            raise
        logging.getLogger(__name__).warning("%s; %s is used", error, _written(setting.default))  # FLOW-257
        return setting.default


def _cpu_count() -> int:
    if hasattr(os, "process_cpu_count"):  # Python 3.13; knows PYTHON_CPU_COUNT
        return os.process_cpu_count() or 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _with_dotenv(environ: Mapping[str, str] | None) -> Mapping[str, str]:
    """The environment over the dotenv file (FLOW-511, FLOW-512, FLOW-519)."""
    variables = os.environ if environ is None else environ
    load, path = (s.read(variables.get(s.variable, _written(s.default))) for s in settings(DotenvSettings))
    if not load:
        return variables
    read = read_dotenv(Path(str(path)))
    for setting in settings(DotenvSettings):  # a file cannot send us to another one
        read.pop(setting.variable, None)
    if environ is not None:
        return {**read, **environ}
    for name, value in read.items():
        os.environ.setdefault(name, value)
    return os.environ


def read_dotenv(path: Path) -> dict[str, str]:
    """The variables of a dotenv file; none if there is no such file. Comments, `export` and quotes; no interpolation.

    Raises SettingError with file and line, never with the line's text: it may hold a secret.
    """
    try:
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise SettingError(f"{path}, line {number}: not UTF-8; save the file as UTF-8") from error
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        raise SettingError(f"PYOCO_ENV_FILE={str(path)!r} cannot be read: {error}; example: .env") from error
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        variable = _dotenv_variable(line)
        if variable is None:
            raise SettingError(f"{path}, line {number}: not a variable; example: PYOCO_DEFAULT_TAG=default")
        found.update([variable])
    return found


def _dotenv_variable(line: str) -> tuple[str, str] | None:
    """Name and value of one line: `'…'` as it is, `"…"` with escapes, anything else up to a comment."""
    left, equals, right = line.partition("=")
    name = re.fullmatch(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*", left)
    if name is None or not equals or "\0" in right:
        return None
    right = right.strip()
    if right[:1] not in {"'", '"'}:
        return name[1], re.split(r"(?:^|\s)#", right, maxsplit=1)[0].rstrip()
    quoted = re.fullmatch(r"""(?:'([^']*)'|"((?:[^"\\]|\\.)*)")\s*(?:(?<=\s)#.*)?""", right)
    if quoted is None:
        return None
    if quoted[1] is not None:
        return name[1], quoted[1]
    return name[1], re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[0]), quoted[2])


_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$"}


def reference() -> str:
    """`docs/reference/settings.md`, whole."""
    rows = [(s.variable, s) for cls in _DECLARED for s in settings(cls) if s.has_variable]
    lines = [f"| `{name}` | {_shown_default(s)} | {s.help} | {_users(s.used_by)} |" for name, s in rows]
    lines += [f"| `{name}` | unset | {text} | {_users(used_by)} |" for name, (used_by, text) in _ELSEWHERE.items()]
    return _REFERENCE.format(rows="\n".join(lines))


def _shown_default(setting: Setting) -> str:
    return f"`{_written(setting.default)}`" if setting.default not in {"", ()} else "unset"


def _users(letters: str) -> str:
    return ", ".join(_USERS[letter] for letter in letters)


_REFERENCE = """\
# Settings

<!-- Generated: python -m pyoco_server.config > docs/reference/settings.md -->

A command-line option wins over the environment, the environment over the dotenv file, the file over the default.
A value that does not parse or is out of range stops the process with a message that names the variable; a bad
`PYOCO_LOG_*` value or `PYOCO_DASHBOARD_LANG` is a warning, and the default is used. Booleans are `1`, `true`, `yes`,
`on` and `0`, `false`, `no`, `off`, in any case. A variable that looks like a misspelt one of these is reported in the
log.

In Python each setting is a field of `pyoco_server.config.NatsBackendConfig`, in lower case and without `PYOCO_`; the
`PYOCO_LOG_*` ones are fields of `LogSettings`. The stream of jobs, `work_stream`, is a field without a variable.

A dotenv file has one `NAME=value` per line. `export` in front, `# comments`, `'text as it is'` and
`"text with \\n escapes"` are understood; `$NAME` is not replaced. A line that is none of this stops the process.

| Variable | Default | Meaning | Used by |
|---|---|---|---|
{rows}
"""

if __name__ == "__main__":
    sys.stdout.write(reference())
