"""From a job to a flow: what may be named, and what one run leaves for the next."""

from __future__ import annotations

import functools
import sys
import textwrap
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyoco import Flow, task

from pyoco_server.core.job import Job
from pyoco_server.errors import FlowNotResolved, InvalidFlow, UsageError
from pyoco_server.executors.flow.build import FlowBuilder, load_resolver
from pyoco_server.executors.flow.reader import YamlFlowFiles

MODULE = """
import os
import subprocess
from functools import partial
from os import system
from subprocess import run as run_it

from pyoco import Flow, task

def own(n=1):
    return n

class Own:
    def __call__(self):
        return 1

an_object = Own()
bound = partial(own, n=2)
bound_library = partial(system, "true")
pick = {"a": 1}.get
made_a_task = task(system)

@task
def decorated(n=1):
    return n

@task
def other():
    return 1

FLOWS = {"named": Flow(name="other") >> decorated}

def resolve(name):
    return FLOWS[name]
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a package with flows, importable and nowhere else."""
    name = f"flows_{uuid.uuid4().hex[:8]}"
    package = tmp_path / name
    (package / "sub").mkdir(parents=True)
    (package / "__init__.py").write_text(MODULE)
    (package / "sub" / "__init__.py").write_text("def deep():\n    return 1\n")
    (package / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    (package / "broken.py").write_text("def (:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def a_job(flow_name: str = "f", text: str | None = None) -> Job:
    body = textwrap.dedent(text) if text else None
    return Job(run_id=str(uuid.uuid4()), flow_name=flow_name, tag="t", submitted_at=1.0, workflow_yaml=body)


def builder(resolver: Callable[[str], Any] | None = None, *allow: str) -> FlowBuilder:
    return FlowBuilder(resolver, YamlFlowFiles(262_144), allow)


def naming(path: str) -> Job:
    """A flow.yaml whose only task is this callable."""
    return a_job(
        text=f"""
        tasks: {{it: {{callable: "{path}"}}}}
        flow: {{graph: it}}
    """
    )


class TestByName:
    def test_the_resolver_is_asked_and_the_flow_bears_the_name_of_the_job(self) -> None:
        """FLOW-368, FLOW-378, ENG-6"""
        one = Flow(name="other")
        flow = builder(lambda _: one)(a_job("mine"))
        assert flow.name == "mine"
        assert one.name == "other"

    def test_an_unknown_flow_is_not_resolved(self) -> None:
        """FLOW-323"""
        with pytest.raises(FlowNotResolved, match="'mine'"):
            builder(dict[str, Flow]().__getitem__)(a_job("mine"))

    def test_any_other_error_of_the_resolver_is_its_own(self) -> None:
        """FLOW-323"""

        def resolve(name: str) -> Flow:
            raise LookupError(name)

        with pytest.raises(LookupError):
            builder(resolve)(a_job("mine"))

    def test_without_a_resolver_nothing_is_found(self) -> None:
        """FLOW-324"""
        with pytest.raises(FlowNotResolved, match="no flow resolver"):
            builder()(a_job("mine"))


class TestLoadingTheResolver:
    def test_finds_a_callable_at_any_depth_of_a_module(self, module: str) -> None:
        """FLOW-463"""
        assert load_resolver(f"{module}:resolve")("named").name == "other"
        assert load_resolver(f"{module}:FLOWS.get")("named").name == "other"

    @pytest.mark.parametrize(
        "spec", ["", ":", "{}", "{}:", ":resolve", "{}:nothing", "{}:FLOWS", "{}.nothing:x", "{}.broken:x", "{}:a..b"]
    )
    def test_refuses_what_cannot_be_loaded_or_called(self, module: str, spec: str) -> None:
        """FLOW-470"""
        with pytest.raises(UsageError):
            load_resolver(spec.format(module))


ADMITTED = ["{}:own", "{}:an_object", "{}:bound", "{}:decorated", "{}:made_a_task", "{}.sub:deep"]
REFUSED = [
    # The standard library, in every disguise.
    "os:system",
    "os.path:join",
    "posix:system",
    "builtins:eval",
    "builtins:exec",
    "importlib:import_module",
    "importlib.util:find_spec",
    "subprocess:run",
    "_posixsubprocess:fork_exec",
    "xml.etree.ElementTree:parse",
    "__main__:x",
    "sys:exit",
    # Names that are no plain names.
    ":system",
    ":",
    ".:system",
    "..os:system",
    ".os:system",
    " os:system",
    "os :system",
    "ｏｓ:system",
    "OS:system",
    # A package that is installed, and offers no tasks.
    "yaml:load",
    "pyoco_server.config:read_dotenv",
    "pyoco.core.engine:Engine",
    "nats:connect",
    # Through the worker's own module.
    "{}.os:system",
    "{}.subprocess:run",
    "{}:os.system",
    "{}:os:system",
    "{}:system",
    "{}:run_it",
    "{}:partial",
    "{}:bound_library",
    "{}:pick",
    "{}:Flow",
    "{}:task",
    "{}:__class__",
    "{}:__getattribute__",
    "{}:__import__",
    "{}:__builtins__",
    "{}:nothing",
    "{}",
    "{}x:own",
    "{}..sub:deep",
    "{}.sub.nothing:deep",
    "{}.leaves:x",
    "{}.broken:x",
]


class TestWhatAFlowFileMayName:
    @pytest.mark.parametrize("path", ADMITTED)
    def test_is_what_the_worker_offers(self, module: str, path: str) -> None:
        """DESIGN 7"""
        build = builder(load_resolver(f"{module}:resolve"))
        assert {each.name for each in build(naming(path.format(module))).tasks} == {"it"}

    @pytest.mark.parametrize("path", REFUSED)
    def test_is_nothing_else(self, module: str, path: str) -> None:
        """DESIGN 7, FLOW-326"""
        build = builder(load_resolver(f"{module}:resolve"))
        with pytest.raises((FlowNotResolved, InvalidFlow)):
            build(naming(path.format(module)))

    @pytest.mark.parametrize("path", ["{}:own", "{}.sub:deep"])
    def test_is_nothing_at_all_on_a_worker_without_flows_of_its_own(self, module: str, path: str) -> None:
        with pytest.raises(FlowNotResolved, match="PYOCO_CALLABLE_ALLOW"):
            builder()(naming(path.format(module)))
        assert module not in sys.modules  # decided before anything is imported

    def test_may_be_extended_by_the_operator(self, module: str) -> None:
        """PYOCO_CALLABLE_ALLOW, a module or a whole package, and of the library what is named."""
        assert builder(None, module)(naming(f"{module}.sub:deep"))
        assert builder(None, f"{module}.sub")(naming(f"{module}.sub:deep"))
        with pytest.raises(FlowNotResolved):
            builder(None, f"{module}.sub")(naming(f"{module}:own"))
        assert builder(None, "math")(naming("math:sqrt"))
        assert builder(None, "os.path")(naming("os.path:join"))
        with pytest.raises(FlowNotResolved):
            builder(None, "os.path")(naming("os:system"))

    @pytest.mark.parametrize(
        "resolver",
        [functools.partial(dict.get, {}), {}.get, functools.lru_cache(lambda _: Flow())],
        ids=["partial", "method", "cache"],
    )
    def test_does_not_grow_because_of_how_a_resolver_is_made(self, resolver: Callable[[str], Any]) -> None:
        for path in ("functools:reduce", "builtins:eval", "collections:namedtuple"):
            with pytest.raises(FlowNotResolved):
                builder(resolver)(naming(path))

    def test_is_told_with_the_reason_when_it_cannot_be_imported(self, module: str) -> None:
        """FLOW-326, ENG-52"""
        build = builder(load_resolver(f"{module}:resolve"))
        with pytest.raises(FlowNotResolved, match="No module named"):
            build(naming(f"{module}.missing:x"))


def test_a_file_that_breaks_the_policy_is_refused_as_such() -> None:
    """FLOW-325"""
    with pytest.raises(InvalidFlow):
        builder()(a_job(text="flows: {}"))


@pytest.mark.parametrize("use", ["nothing", "it"])
def test_an_unknown_use_is_not_resolved(use: str) -> None:
    """FLOW-326"""
    with pytest.raises(FlowNotResolved):
        builder()(a_job(text=f"tasks: {{it: {{use: {use}}}}}\nflow: {{graph: it}}"))


class TestTwoFlowsOfOneModule:
    @pytest.fixture
    def build(self, module: str, monkeypatch: pytest.MonkeyPatch) -> FlowBuilder:
        monkeypatch.setenv("PYOCO_DISCOVERY_MODULES", module)
        return builder(load_resolver(f"{module}:resolve"))

    def test_share_no_task_object_and_no_input(self, build: FlowBuilder, module: str) -> None:
        """FLOW-377, ENG-53"""
        text = """
            tasks: {decorated: {inputs: {n: [1]}, outputs: [scratch.x]}}
            flow: {graph: decorated >> other}
        """
        first, second = build(a_job(text=text)), build(a_job(text=text))
        plain = build(a_job(text="flow: {graph: other >> decorated}"))
        tasks = [{each.name: each for each in flow.tasks} for flow in (first, second, plain)]
        assert len({id(each["decorated"]) for each in tasks}) == 3
        assert tasks[0]["decorated"].inputs["n"] is not tasks[1]["decorated"].inputs["n"]
        assert (tasks[2]["decorated"].inputs, tasks[2]["decorated"].outputs) == ({}, [])
        assert tasks[0]["decorated"].dependencies == set()
        assert tasks[0]["other"].dependencies == {tasks[0]["decorated"]}
        assert tasks[2]["decorated"].dependencies == {tasks[2]["other"]}
        own = sys.modules[module].decorated.task
        assert (own.inputs, own.outputs, own.dependencies) == ({}, [], set())

    def test_leave_the_flows_by_name_as_they_are(self, build: FlowBuilder) -> None:
        """FLOW-377"""
        before = {each.name: set(each.dependencies) for each in build(a_job("named")).tasks}
        build(a_job(text="flow: {graph: other >> decorated}"))
        assert {each.name: set(each.dependencies) for each in build(a_job("named")).tasks} == before


def test_a_task_made_in_python_keeps_its_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    """ENG-27: policy, retries and timeouts come from the task object."""
    module = type(sys)("policies")

    def careful() -> None: ...

    made = task(careful)
    made.task.retries, made.task.fail_policy, made.task.timeout_sec = 2, "isolate", 5
    module.careful = made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "policies", module)
    monkeypatch.setenv("PYOCO_DISCOVERY_MODULES", "policies")
    [built] = builder()(a_job(text="flow: {graph: careful}")).tasks
    assert (built.retries, built.fail_policy, built.timeout_sec) == (2, "isolate", 5)
