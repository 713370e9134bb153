"""What a flow.yaml may call, and every way around that we could think of. A sandbox it is not: see SECURITY.md."""

from __future__ import annotations

import functools
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from pyoco import Flow

from pyoco_server.core.outcome import DeadReason, Failed
from pyoco_server.core.wheel_sync import Environment
from pyoco_server.errors import CallableRefused, FlowNotResolved
from pyoco_server.executors.flow.build import FlowBuilder, load_resolver
from pyoco_server.executors.flow.engine import EngineRun
from support.callable_modules import build, builder, calling, folder, job, names, refusal_of, unique, written

__all__ = ["build", "folder", "names"]

OURS = """
own an_object a_method a_lambda bound cached timed twice_timed decorated dispatched made_a_task
Own Record Row Base own_decorator own_static_call own_class_call own_call_within
"""
NOT_OURS = """
system run Popen check_output sh renamed opened evaluate bound_library bound_twice makes_partials hidden
cached_library decorated_library decorated_deep helper Tool foreign_method foreign_object foreign_class_method
dict_method own_dict_method own_dict_class_method
connection_method made_method unbound slot getter generic a_module a_text os subprocess builtins
other OwnPopen OwnTool own_tool inherited_method OwnEnum Failure ByMeta ByEval liar LyingTool lying_object
makes_things_up static_call direct_call class_call bound_call makes_call call_within deep_call ring_call
endless made_up task namedtuple OrderedDict
_private _copy __getattr__ __builtins__ __name__ __loader__ __spec__
"""


class TestANameInAModuleOnOffer:
    @pytest.mark.parametrize("name", OURS.split())
    def test_may_be_called_when_it_is_code_of_that_module(
        self, build: FlowBuilder, names: tuple[str, str], name: str
    ) -> None:
        """DESIGN 7"""
        [task] = build(calling(f"{names[0]}:{name}")).tasks
        assert task.name == "it"

    @pytest.mark.parametrize("name", NOT_OURS.split())
    def test_may_not_be_called_when_it_only_lies_there(
        self, build: FlowBuilder, names: tuple[str, str], name: str
    ) -> None:
        """DESIGN 7: re-exports, classes, methods of foreign objects, partials, decorators, lies, modules, dunders."""
        refusal_of(build, f"{names[0]}:{name}")

    @pytest.mark.parametrize("name", ["a_module", "a_text", "subprocess"])
    def test_that_cannot_be_called_is_refused_as_that(
        self, build: FlowBuilder, names: tuple[str, str], name: str
    ) -> None:
        assert refusal_of(build, f"{names[0]}:{name}").endswith("which cannot be called")

    def test_is_looked_up_once(self, folder: Path) -> None:
        """What is checked is what is called: a module that answers differently each time gains nothing."""
        module = unique("twofaced")
        text = "import os\nn = 0\ndef own():\n    return 1\ndef __getattr__(name):\n    global n\n    n += 1\n"
        written(folder, **{module: text + "    return own if n % 2 else os.system\n"})
        [task] = builder(None, own=[module])(calling(f"{module}:face")).tasks
        assert task.func.__name__ == "own"
        refusal_of(builder(None, own=[module]), f"{module}:face")

    def test_may_be_a_re_export_from_another_module_on_offer(self, folder: Path) -> None:
        package = unique("pkg")
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text(f"from {package}._code import work\n")
        (folder / package / "_code.py").write_text("def work():\n    return 1\n")
        assert builder(None, own=[package])(calling(f"{package}:work"))


MODULES = [
    ("os:system", "belongs to the standard library"),
    ("os.path:join", "belongs to the standard library"),
    ("posix:system", "belongs to the standard library"),
    ("builtins:eval", "belongs to the standard library"),
    ("sys:exit", "belongs to the standard library"),
    ("importlib:import_module", "belongs to the standard library"),
    ("importlib.metadata:entry_points", "belongs to the standard library"),
    ("_posixsubprocess:fork_exec", "belongs to the standard library"),
    ("pyoco.core.engine:Engine", "is part of the worker itself"),
    ("pyoco:run", "is part of the worker itself"),
    ("pyoco_server.wiring:versions", "is part of the worker itself"),
    ("pyoco_server.executors.host.child:main", "is part of the worker itself"),
    ("__main__:main", "does not offer"),
    ("yaml:load", "does not offer"),
    ("nats:connect", "does not offer"),
    ("OS:system", "does not offer"),
    ("Os:system", "does not offer"),
    ("ｏｓ:system", "does not offer"),
    ("оs:system", "does not offer"),
    ("ｂuiltins:eval", "does not offer"),
    (" os:system", "is not a module and a name"),
    ("os :system", "is not a module and a name"),
    ("os: system", "is not a module and a name"),
    ("os\n:system", "is not a module and a name"),
    ("os\u200b:system", "is not a module and a name"),
    (".os:system", "is not a module and a name"),
    ("..os:system", "is not a module and a name"),
    ("os.:system", "is not a module and a name"),
    (":system", "is not a module and a name"),
    (":", "is not a module and a name"),
    ("os", "is not a module and a name"),
    ("os:", "is not a module and a name"),
    ("os:path.join", "is not a module and a name"),
    ("/tmp/x:run", "is not a module and a name"),
    ("os/system:run", "is not a module and a name"),
    ("{own}:os.system", "is not a module and a name"),
    ("{own}:os:system", "is not a module and a name"),
    ("{own}:own()", "is not a module and a name"),
    ("{own}::own", "is not a module and a name"),
    ("{own}..sub:deep", "is not a module and a name"),
    ("{own}thing:own", "does not offer"),
    ("{own}._inner:deep", "is private"),
    ("{own}.__init__:own", "is private"),
    ("{other}:helper", "does not offer"),
]


def in_this_module() -> str:
    return "called"


class TestAModule:
    @pytest.mark.parametrize(("path", "why"), MODULES, ids=[repr(path) for path, _ in MODULES])
    def test_that_is_not_on_offer_is_refused_with_the_reason(
        self, build: FlowBuilder, names: tuple[str, str], path: str, why: str
    ) -> None:
        """DESIGN 7"""
        own, other = names
        assert why in refusal_of(build, path.format(own=own, other=other))

    def test_that_is_not_on_offer_is_not_even_imported(self, folder: Path) -> None:
        """Decided before the import: the code of a module that nobody offers is not run."""
        module = unique("loud")
        written(folder, **{module: "raise SystemExit('imported')\n"})
        text = f"tasks: {{a: {{callable: 'math:sqrt'}}, b: {{callable: '{module}:x'}}}}\nflow: {{graph: a >> b}}"
        for build_flow in (builder(), builder(None, "math")):
            with pytest.raises(CallableRefused):
                build_flow(job(text))
        assert module not in sys.modules

    def test_under_an_alias_of_ours_is_still_what_it_is(self, names: tuple[str, str]) -> None:
        """sys.modules["own.aliased"] is subprocess."""
        build = builder(None, own=[names[0]])
        build(calling(f"{names[0]}:own"))
        assert "belongs to subprocess" in refusal_of(build, f"{names[0]}.aliased:run")

    def test_that_does_not_belong_to_the_package_is_not_found_in_it(self, names: tuple[str, str]) -> None:
        with pytest.raises(FlowNotResolved, match="No module named"):
            builder(None, own=[names[0]])(calling(f"{names[0]}.subprocess:run"))

    def test_that_shares_a_namespace_with_one_on_offer_is_not_on_offer(self, folder: Path) -> None:
        """`company.flows` offers itself, and not what another distribution has put below `company`."""
        space = unique("company")
        for name in ("flows", "secrets"):
            (folder / space / name).mkdir(parents=True)
            (folder / space / name / "__init__.py").write_text("def work():\n    return 1\n")
            (folder / space / name / "more.py").write_text("def work():\n    return 1\n")
        build = builder(None, own=[f"{space}.flows.more"])
        assert build(calling(f"{space}.flows.more:work"))
        assert build(calling(f"{space}.flows:work"))
        assert f"PYOCO_CALLABLE_ALLOW={space}.secrets" in refusal_of(build, f"{space}.secrets.more:work")
        assert f"{space}.secrets" not in sys.modules

    @pytest.mark.parametrize("searched", ["os", "subprocess", "pyoco", "pyoco_server"])
    def test_that_is_searched_for_tasks_is_no_library_because_of_that(
        self, monkeypatch: pytest.MonkeyPatch, searched: str
    ) -> None:
        """PYOCO_DISCOVERY_MODULES offers modules of the worker; only PYOCO_CALLABLE_ALLOW names the library."""
        monkeypatch.setenv("PYOCO_DISCOVERY_MODULES", searched)
        refusal_of(builder(), f"{searched}:system")

    def test_that_is_searched_for_tasks_is_on_offer(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        module = unique("searched")
        written(folder, **{module: "def work():\n    return 1\n"})
        monkeypatch.setenv("PYOCO_DISCOVERY_MODULES", module)
        assert builder()(calling(f"{module}:work"))

    def test_of_the_resolver_is_the_one_that_the_operator_has_named(self, folder: Path) -> None:
        """Not the one from which that module has it."""
        named, shared = unique("named"), unique("shared")
        written(folder, **{named: f"from {shared} import resolve\ndef work():\n    return 1\n"})
        written(folder, **{shared: "def resolve(name):\n    raise KeyError(name)\ndef work():\n    return 1\n"})
        build = builder(load_resolver(f"{named}:resolve"), own=[named])
        assert build(calling(f"{named}:work"))
        refusal_of(build, f"{shared}:work")

    def test_of_a_resolver_in_the_program_itself_is_on_offer(self) -> None:
        """The library: there is no name to go by, so the function is asked."""

        def resolve(name: str) -> Flow:
            raise KeyError(name)

        assert builder(resolve)(calling(f"{__name__}:in_this_module"))
        assert builder(functools.lru_cache(resolve))(calling(f"{__name__}:in_this_module"))
        refusal_of(builder(dict[str, Flow]().__getitem__), f"{__name__}:in_this_module")


class TestTheOperator:
    def test_allows_a_module_and_what_is_below_it_and_not_what_begins_alike(self, names: tuple[str, str]) -> None:
        """PYOCO_CALLABLE_ALLOW"""
        own, _ = names
        assert builder(None, own)(calling(f"{own}.sub:deep"))
        assert builder(None, f"{own}.sub")(calling(f"{own}.sub:deep"))
        for allow, path in (
            (own[:-1], f"{own}:own"),
            (own, f"{own}thing:own"),
            (f"{own}.su", f"{own}.sub:deep"),
            (f"{own}.sub", f"{own}:own"),
            (f"{own}.sub.deep", f"{own}.sub:deep"),
            (own.upper(), f"{own}:own"),
        ):
            refusal_of(builder(None, allow), path)

    def test_may_name_what_is_private(self, names: tuple[str, str]) -> None:
        assert builder(None, f"{names[0]}._inner")(calling(f"{names[0]}._inner:deep"))
        refusal_of(builder(None, names[0]), f"{names[0]}:_private")

    def test_may_name_the_library_with_what_is_public_there(self) -> None:
        assert builder(None, "math")(calling("math:sqrt"))
        assert builder(None, "os.path")(calling("os.path:join"))
        assert builder(None, "shutil")(calling("shutil:copy"))
        refusal_of(builder(None, "os.path"), "os:system")
        refusal_of(builder(None, "shutil"), "shutil:fnmatch")  # merely imported there
        refusal_of(builder(None, "logging"), "logging:Template")
        refusal_of(builder(None, "json"), "json:codecs")
        refusal_of(builder(None, "math"), "subprocess:run")

    @pytest.mark.parametrize("name", ["pyoco", "pyoco_server", "pyoco_server.wiring"])
    def test_cannot_offer_the_worker_itself(self, name: str) -> None:
        assert "part of the worker itself" in refusal_of(builder(None, name), "pyoco_server.wiring:versions")


class TestTheRefusal:
    def test_has_its_own_id_and_the_reason_of_a_flow_that_cannot_be_built(self) -> None:
        """FLOW-326, ERR-PYOCO-0031"""
        outcome = EngineRun(calling("subprocess:run"), builder()).execute()
        assert isinstance(outcome, Failed)
        assert outcome.reason is DeadReason.FLOW_NOT_FOUND
        assert outcome.message == (
            "ERR-PYOCO-0031: task 'it' names 'subprocess:run', which belongs to the standard library"
        )

    def test_is_not_what_a_missing_name_gets(self, names: tuple[str, str]) -> None:
        outcome = EngineRun(calling(f"{names[0]}:nothing"), builder(None, own=[names[0]])).execute()
        assert isinstance(outcome, Failed)
        assert "ERR-PYOCO-0031" not in outcome.message
        assert "nothing" in outcome.message

    def test_of_a_name_without_end_is_short(self) -> None:
        assert len(refusal_of(builder(), "x" * 100_000 + ":y")) < 1000
        assert len(refusal_of(builder(), ".".join("x" * 1000) + ":y")) < 1000


def test_installed_packages_are_looked_at_once_and_not_for_each_run(
    names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes milliseconds, which a short run has not got. Other wheels are another look."""
    looks, entry_points = 0, metadata.entry_points

    def counted(**which: Any) -> Any:
        nonlocal looks
        looks += 1
        return entry_points(**which)

    monkeypatch.setattr(metadata, "entry_points", counted)
    build = builder(None, own=[names[0]])
    for _ in range(3):
        build(calling(f"{names[0]}:own"))
    assert looks == 1
    build.see(Environment())
    build(calling(f"{names[0]}:own"))
    assert looks == 2
