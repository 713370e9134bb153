"""The contents of a flow.yaml and their validation (section 7 of the contract). Text in, plain values out; no YAML
here.

The checks run on parsed values and collect all problems, up to `PROBLEMS_MAX`, so that a file can be fixed in one go.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyoco_server.core.retries.policy import NO_RETRY, RetryPolicy
from pyoco_server.core.retries.reading import read_policy, read_policy_text, read_run_timeout, read_task_timeout
from pyoco_server.core.retries.task_course import TaskTerms
from pyoco_server.core.strict_json import Bounds, Loc, OutOfBoundsError, bounds_of, copy_mapping, kind_of
from pyoco_server.errors import InvalidFlow, Problem

__all__ = ["PROBLEMS_MAX", "FlowFile", "TaskSpec", "check_flow", "excerpt", "refuse"]

#: A longer list would not be read.
PROBLEMS_MAX: Final = 20
#: How much of the user's own text is quoted in a message.
EXCERPT_LENGTH_MAX: Final = 80

ROOT: Loc = ("workflow",)

#: Python's special names, as in `$ctx.loop.__class__`: the engine follows attributes, and these lead to everything in
#: the process.
_PYTHONS_OWN = re.compile(r"\.(__\w+__)(?!\w)", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """One entry under `tasks`. At most one of `callable` and `use` is set (FLOW-165)."""

    callable: str | None = None
    use: str | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    #: What the file says; None: nothing.
    terms: TaskTerms | None = None


@dataclass(frozen=True, kw_only=True)
class FlowFile:
    """A flow.yaml that follows the policy. Only a worker can tell whether its tasks exist (FLOW-167)."""

    graph: str
    #: The params of the run (FLOW-171): strict JSON, copied, without values shared between members (FLOW-172).
    defaults: dict[str, Any]
    tasks: Mapping[str, TaskSpec]
    pipes: Mapping[str, str]
    #: The engine reads it but does not use it (ENG-56).
    expose_env: tuple[str, ...]
    #: None: the file says nothing of retries.
    retry: RetryPolicy | None
    #: Seconds for each try of the run.
    timeout: float | None
    #: Digest of the bytes as received (FLOW-173).
    sha256: str
    size: int
    #: Travels in the job and is stored nowhere else (FLOW-174).
    text: str


def check_flow(document: object, data: bytes) -> FlowFile:
    """Return the flow file in `data`, given the document that a YAML reader made of it. O(size), within `bounds_of`.

    Raises InvalidFlow with all problems found. Does not check the graph, which is in the engine's own language.
    """
    found = _Found()
    top = _mapping(found, document, ROOT)
    _check_keys(found, top, "", ROOT)
    version = top.get("version", 1)
    if type(version) is not int or version != 1:  # neither true nor 1.0
        found.add((*ROOT, "version"), "must be 1, or be left out", "version")
    flow_loc = (*ROOT, "flow")
    flow = _section(found, top, "flow", ROOT)
    if isinstance(document, dict) and "flow" not in document:
        found.add(flow_loc, "is missing: a file holds one flow, with its graph under `flow`", "missing")
    _check_keys(found, flow, "flow", flow_loc)
    parts: dict[str, Any] = {
        "graph": _graph(found, flow, flow_loc) if isinstance(top.get("flow"), dict) else "",
        "defaults": _defaults(found, flow.get("defaults"), (*flow_loc, "defaults"), bounds_of(len(data))),
        "tasks": _tasks(found, _section(found, top, "tasks", ROOT), (*ROOT, "tasks")),
        "pipes": _pipes(found, _section(found, top, "pipes", ROOT), (*ROOT, "pipes")),
        "retry": _retry(found, flow, flow_loc),
        "timeout": _timeout(found, flow, flow_loc, read_run_timeout),
        "expose_env": _runtime(found, _section(found, top, "runtime", ROOT), (*ROOT, "runtime")),
    }
    if found.problems:
        raise refuse(*found.problems)
    return FlowFile(**parts, sha256=hashlib.sha256(data).hexdigest(), size=len(data), text=data.decode())


def refuse(*problems: Problem) -> InvalidFlow:
    """Return the error for these problems; its text names the first three."""
    listed = "; ".join(f"{excerpt('.'.join(map(str, item.loc[1:]))) or 'file'}: {item.msg}" for item in problems[:3])
    more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    return InvalidFlow(f"the flow.yaml is not valid: {listed}{more}", problems=problems)


def excerpt(text: str) -> str:
    """Return the user's own text, short enough to be quoted in a message."""
    return text if len(text) <= EXCERPT_LENGTH_MAX else text[: EXCERPT_LENGTH_MAX - 1] + "…"


class _Found:
    """The problems so far. Beyond the limit, problems are ignored, and checks may stop."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    @property
    def is_full(self) -> bool:
        return len(self.problems) >= PROBLEMS_MAX

    def add(self, loc: Loc, msg: str, kind: str) -> None:
        if not self.is_full:
            short = tuple(excerpt(step) if isinstance(step, str) else step for step in loc)
            self.problems.append(Problem(short, msg, kind))


#: FLOW-163: the keys allowed in each part of the file; "" is the top level.
_SCHEMA: dict[str, tuple[str, ...]] = {
    "": ("version", "flow", "tasks", "pipes", "runtime"),
    "flow": ("graph", "defaults", "retry", "timeout"),
    "tasks.<name>": ("callable", "use", "inputs", "outputs", "retry", "timeout"),
    "runtime": ("expose_env",),
}
#: FLOW-162: keys of the engine that are forbidden here, with advice.
_FORBIDDEN = {
    "flows": "is not allowed: one file holds one flow; put its graph under `flow`",
    "discovery": "is not allowed: which modules are searched for tasks is the worker's setting",
}


def _check_keys(found: _Found, mapping: dict[Any, Any], part: str, loc: Loc) -> None:
    for key in mapping:
        if found.is_full:
            return
        if not isinstance(key, str):
            found.add(loc, f"a key is {kind_of(key)}, not text: quote it", "key_type")
        elif key in _FORBIDDEN and part == "":
            found.add((*loc, key), _FORBIDDEN[key], "forbidden_key")
        elif key not in _SCHEMA[part]:
            found.add((*loc, key), f"is not a key of a flow.yaml here{_hint(key, part)}", "unknown_key")


def _hint(key: str, part: str) -> str:
    near = difflib.get_close_matches(excerpt(key).lower(), _SCHEMA[part], n=1)
    if near:
        return f"; did you mean `{near[0]}`?"
    for other, keys in _SCHEMA.items():
        if key in keys:
            return f"; it belongs under `{other}`" if other else "; it belongs at the top level"
    return "; allowed are " + ", ".join(f"`{name}`" for name in _SCHEMA[part])


def _mapping(found: _Found, value: object, loc: Loc) -> dict[Any, Any]:
    """FLOW-165: the value if it is a mapping; otherwise note the problem and return an empty one."""
    if isinstance(value, dict):
        return value
    if value is None:
        msg = "the file is empty" if loc == ROOT else "is empty: give it content, write {}, or leave the key out"
    else:
        msg = f"must be a mapping of keys to values, not {kind_of(value)}"
    found.add(loc, msg, "mapping_type")
    return {}


def _section(found: _Found, parent: dict[Any, Any], key: str, loc: Loc) -> dict[Any, Any]:
    return _mapping(found, parent[key], (*loc, key)) if key in parent else {}


def _named(found: _Found, mapping: dict[Any, Any], loc: Loc) -> list[tuple[str, Any]]:
    """Return the entries of a mapping whose keys the user chose."""
    for key in mapping:
        if not isinstance(key, str):
            found.add(loc, f"a name is {kind_of(key)}, not text: quote it", "key_type")
    return [(key, value) for key, value in mapping.items() if isinstance(key, str)]


def _graph(found: _Found, flow: dict[Any, Any], loc: Loc) -> str:
    """FLOW-164"""
    graph = flow.get("graph")
    if isinstance(graph, str) and graph.strip():
        _check_reference(found, graph, (*loc, "graph"))
        return graph
    if "graph" not in flow:
        found.add((*loc, "graph"), "is missing: say which tasks run, as in `first >> second`", "missing")
    else:
        kind = "empty" if isinstance(graph, str) else kind_of(graph)
        found.add((*loc, "graph"), f"must be text such as `first >> second`; it is {kind}", "graph_type")
    return ""


def _tasks(found: _Found, section: dict[Any, Any], loc: Loc) -> dict[str, TaskSpec]:
    return {name: _task(found, value, (*loc, name)) for name, value in _named(found, section, loc)}


def _task(found: _Found, value: object, loc: Loc) -> TaskSpec:
    task = _mapping(found, value, loc)
    _check_keys(found, task, "tasks.<name>", loc)
    for key in ("callable", "use"):
        if task.get(key) is not None and (not isinstance(task[key], str) or not task[key].strip()):
            found.add((*loc, key), f"must be text that names a task; it is {kind_of(task[key] or None)}", "text_type")
    if task.get("callable") is not None and task.get("use") is not None:
        found.add(loc, "has both `callable` and `use`: keep one of them", "callable_and_use")
    inputs = dict(_named(found, _section(found, task, "inputs", loc), (*loc, "inputs")))
    for name, given in inputs.items():
        if isinstance(given, str) and given.startswith("$"):
            _check_reference(found, given, (*loc, "inputs", name))
    return TaskSpec(
        callable=task.get("callable"),
        use=task.get("use"),
        inputs=inputs,
        outputs=_texts(found, task, "outputs", loc),
        terms=_task_terms(found, task, loc),
    )


def _task_terms(found: _Found, task: dict[Any, Any], loc: Loc) -> TaskTerms | None:
    retry, timeout = _retry(found, task, loc), _timeout(found, task, loc, read_task_timeout)
    return None if retry is None and timeout is None else TaskTerms(retry=retry, timeout=timeout)


def _retry(found: _Found, part: dict[Any, Any], loc: Loc) -> RetryPolicy | None:
    """RETRY-11: an object or the short text; null means no retry."""
    value = part.get("retry")
    if value is None:
        return NO_RETRY if "retry" in part else None
    if isinstance(value, str):
        return read_policy_text(value, (*loc, "retry"), found.add)
    return read_policy(value, (*loc, "retry"), found.add)


def _timeout(found: _Found, part: dict[Any, Any], loc: Loc, read: Callable[[object], float]) -> float | None:
    try:
        return None if part.get("timeout") is None else read(part["timeout"])
    except ValueError as error:
        found.add((*loc, "timeout"), str(error), "value")
        return None


def _pipes(found: _Found, section: dict[Any, Any], loc: Loc) -> dict[str, str]:
    pipes = dict(_named(found, section, loc))
    for name, value in pipes.items():
        if not isinstance(value, str):
            found.add((*loc, name), f"must be text such as `first >> second`; it is {kind_of(value)}", "text_type")
        else:
            _check_reference(found, value, (*loc, name))
    return pipes


def _check_reference(found: _Found, text: str, loc: Loc) -> None:
    named = _PYTHONS_OWN.search(text)
    if named is not None:
        found.add(loc, f"must not follow `{excerpt(named[1])}`: values are read, not Python's own parts", "reference")


def _runtime(found: _Found, section: dict[Any, Any], loc: Loc) -> tuple[str, ...]:
    _check_keys(found, section, "runtime", loc)
    return _texts(found, section, "expose_env", loc)


def _texts(found: _Found, parent: dict[Any, Any], key: str, loc: Loc) -> tuple[str, ...]:
    values = parent.get(key, [])
    if not isinstance(values, list):
        found.add((*loc, key), f"must be a list of texts; it is {kind_of(values)}", "list_type")
        return ()
    for index, value in enumerate(values):
        if not isinstance(value, str):
            found.add((*loc, key, index), f"must be text; it is {kind_of(value)}: quote it", "text_type")
    return tuple(values)


def _defaults(found: _Found, value: object, loc: Loc, bounds: Bounds) -> dict[str, Any]:
    """FLOW-171: absent and null count as {}."""
    if value is None:
        return {}
    mapping = _mapping(found, value, loc)
    try:
        return copy_mapping(mapping, loc, bounds, found.add)
    except OutOfBoundsError as error:
        found.add(loc, str(error), "too_large")
        return {}
