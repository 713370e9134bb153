"""Plug-ins: somebody else's code, which only those runs pay for that want it."""

from __future__ import annotations

import importlib
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.core.job import Job
from pyoco_server.core.outcome import Completed, DeadReason, Failed
from pyoco_server.core.wheel_sync import NO_WHEELS, Environment
from pyoco_server.errors import FlowNotResolved
from pyoco_server.executors.flow.build import FlowBuilder
from pyoco_server.executors.flow.engine import EngineRun
from pyoco_server.executors.flow.paths import forget_modules, place_wheels, remove_wheels
from pyoco_server.executors.flow.reader import YamlFlowFiles

GOOD = """
CALLS = []

def tell():
    return "good"

def register(registry):
    CALLS.append(1)
    registry.register_callable(tell, name="good/tell")
    registry.register_callable(tell, name="step")
"""
#: Hooks that nobody can live with.
BAD = {
    "raises": "def register(registry): raise RuntimeError('on purpose')",
    "exits": "import sys\ndef register(registry): sys.exit(3)",
    "interrupts": "def register(registry): raise KeyboardInterrupt",
    "cannot be printed": """
        class Odd(BaseException):
            def __str__(self): raise Odd
        def register(registry): raise Odd
    """,
    "is none": "register = 1",
    "cannot be imported": "raise SystemExit('on purpose')",
}


def test_a_module_that_has_no_place_is_no_obstacle() -> None:
    """Of cffi, which makes modules without a `__dict__`; cryptography brings some"""
    importlib.import_module("cryptography.hazmat.bindings.openssl.binding")
    assert any(type(module).__name__ == "Lib" for module in sys.modules.values())
    assert forget_modules(["/nowhere"]) == []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where packages are installed."""
    folder = tmp_path / "installed"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    forget_modules([str(folder)])


@pytest.fixture
def wheel(tmp_path: Path) -> Iterator[Path]:
    wheel = tmp_path / "wheel"
    wheel.mkdir()
    place_wheels([str(wheel)])
    yield wheel
    remove_wheels([str(wheel)])
    forget_modules([str(wheel)])


def package(folder: Path, word: str, source: str) -> str:
    """A package with a plug-in of the same name."""
    name = f"{word}_{uuid.uuid4().hex[:8]}"
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (folder / f"{name}.py").write_text(textwrap.dedent(source))
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[pyoco.tasks]\n{name} = {name}:register\n")
    return name


def builder(environment: Environment = NO_WHEELS) -> FlowBuilder:
    return FlowBuilder(None, YamlFlowFiles(100_000), environment=environment)


def output_of(build: FlowBuilder, text: str) -> Any:
    outcome = EngineRun(job(text), build).execute()
    assert isinstance(outcome, Completed), outcome
    return list(outcome.progress.task_records.values())[-1]["output"]


def job(text: str) -> Job:
    return Job(run_id=str(uuid.uuid4()), flow_name="f", tag="t", submitted_at=1.0, workflow_yaml=textwrap.dedent(text))


def using(name: str) -> str:
    return f"tasks: {{it: {{use: {name}}}}}\nflow: {{graph: it}}"


def calls_of(name: str) -> int:
    return len(sys.modules[name].CALLS) if name in sys.modules else 0


class TestAPlugInThatDoesNotWork:
    @pytest.mark.parametrize("source", BAD.values(), ids=BAD)
    def test_costs_nobody_who_does_not_want_it(self, folder: Path, source: str) -> None:
        package(folder, "aaa", source)
        good = package(folder, "good", GOOD)
        package(folder, "zzz", source)
        build = builder()
        for text in (using("good/tell"), "flow: {graph: step}", f"tasks: {{it: {{callable: '{good}:tell'}}}}"):
            assert output_of(build, text if "flow:" in text else f"{text}\nflow: {{graph: it}}") == "good"

    @pytest.mark.parametrize("source", BAD.values(), ids=BAD)
    def test_is_named_to_the_run_that_wants_it(self, folder: Path, source: str) -> None:
        """FLOW-326: also what is no Exception."""
        name = package(folder, "bad", source)
        outcome = EngineRun(job(using("bad/x")), builder()).execute()
        assert isinstance(outcome, Failed)
        assert outcome.reason is DeadReason.FLOW_NOT_FOUND
        assert "bad/x" in outcome.message
        assert f"Plug-in '{name}' failed to load" in outcome.message

    def test_may_have_registered_something_before(self, folder: Path) -> None:
        """ENG-52: what it came to register counts."""
        package(folder, "half", GOOD + "    raise KeyboardInterrupt\n")
        assert output_of(builder(), using("good/tell")) == "good"

    def test_is_tried_again_by_the_next_run_that_may_want_it(self, folder: Path) -> None:
        once = "    if len(CALLS) < 3:\n        raise OSError('not yet')\n"
        package(folder, "late", GOOD.replace("    CALLS.append(1)\n", "    CALLS.append(1)\n" + once))
        build = builder()
        with pytest.raises(FlowNotResolved, match="not yet"):
            build(job(using("good/tell")))
        assert output_of(build, using("good/tell")) == "good"


class TestTheHook:
    def test_is_not_called_when_no_step_is_of_a_plug_in(self, folder: Path) -> None:
        name = package(folder, "good", GOOD)
        build = builder()
        output_of(build, f"tasks: {{it: {{callable: '{name}:tell'}}, more: {{use: it}}}}\nflow: {{graph: more >> it}}")
        assert calls_of(name) == 0

    def test_is_called_once_to_learn_its_names_and_then_when_they_are_wanted(self, folder: Path) -> None:
        name = package(folder, "good", GOOD)
        other = package(folder, "other", GOOD.replace("good", "other").replace("step", "leap"))
        build = builder()
        for _ in range(3):
            output_of(build, using("good/tell"))
        assert calls_of(name) == 4
        assert calls_of(other) <= 1  # it depends on who is asked first

    @pytest.mark.parametrize(
        "graph",
        [
            "step",
            "twin: step",
            "mine >> step",
            "pipe(p)",
            "repeat(count=x){ mine >> step }",
            "foreach(over=x, item=y){ until(cond={{ $ctx.y }}){ step } }",
            "switch(on=x){ a: mine; b: step; }",
            "switch(on=x){ a: mine; default: mine >> step; }",
        ],
    )
    def test_is_found_by_a_name_anywhere_in_the_graph(self, folder: Path, graph: str) -> None:
        name = package(folder, "good", GOOD)
        text = {"mine": {"callable": f"{name}:tell"}}
        document = f"tasks: {text}\npipes: {{p: mine >> step}}\nflow: {{graph: '{graph}'}}"
        assert builder()(job(document))

    def test_is_found_although_tasks_have_the_names_of_words_in_the_graph(self, folder: Path) -> None:
        name = package(folder, "good", GOOD)
        tasks = {word: {"callable": f"{name}:tell"} for word in ("pipe", "p")}
        assert output_of(builder(), f"tasks: {tasks}\npipes: {{p: step}}\nflow: {{graph: pipe(p)}}") == "good"

    def test_of_a_wheel_goes_before_what_is_installed(self, folder: Path, wheel: Path) -> None:
        """As its modules do; and what is installed is then not even called."""
        installed = package(folder, "installed", GOOD)
        new = package(wheel, "new", GOOD.replace('return "good"', 'return "new"'))
        build = builder(Environment((str(wheel),), (new,)))
        assert output_of(build, using("good/tell")) == "new"
        assert calls_of(installed) == 0
        with pytest.raises(FlowNotResolved):
            build(job(using("good/unknown")))
        assert calls_of(installed) == 1
        assert output_of(build, using("good/tell")) == "new"

    def test_of_a_wheel_is_called_when_a_host_warms_up(self, folder: Path, wheel: Path) -> None:
        """What is installed with the worker is not: who runs no flow.yaml need not pay for it."""
        installed = package(folder, "installed", GOOD)
        good, bad = package(wheel, "good", GOOD), package(wheel, "bad", BAD["interrupts"])
        faults = builder(Environment((str(wheel),), (good, bad))).warm()
        assert faults == {str(wheel): f"Plug-in '{bad}' failed to load: KeyboardInterrupt"}
        assert (calls_of(installed), calls_of(good)) == (0, 1)
