"""What a flow.yaml may call, and every way around that we could think of. A sandbox it is not: see SECURITY.md."""

from __future__ import annotations

import functools
import json
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from pyoco import Flow

from pyoco_server.core.job import Job
from pyoco_server.core.outcome import DeadReason, Failed
from pyoco_server.core.wheel_sync import Environment
from pyoco_server.errors import CallableRefused, FlowNotResolved
from pyoco_server.executors.flow.build import FlowBuilder, load_resolver
from pyoco_server.executors.flow.engine import EngineRun
from pyoco_server.executors.flow.paths import forget_modules, place_wheels, remove_wheels
from pyoco_server.executors.flow.reader import YamlFlowFiles

DISGUISES = """
import abc, builtins, contextlib, enum, functools, importlib, operator, os, random, sqlite3, subprocess, sys, types
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from os import system
from subprocess import Popen, check_output, run
from typing import NamedTuple

from pyoco import task

import {other} as other
from {other} import helper, Tool

def own(n=1):
    return n

def _private():
    return 1

class Own:
    def __init__(self, n=1):
        self.n = n
    def __call__(self):
        return self.n
    def method(self):
        return self.n

@dataclass
class Record:
    n: int = 1

class Row(NamedTuple):
    n: int = 1

class Base(abc.ABC):
    pass

# What is ours, however it is dressed.
an_object = Own()
class OwnStatic:
    __call__ = staticmethod(own)
own_static_call = OwnStatic()
class OwnByClass:
    __call__ = classmethod(lambda cls: 1)
own_class_call = OwnByClass()
class OwnWithin:
    __call__ = OwnStatic()
own_call_within = OwnWithin()
a_method = Own().method
a_lambda = lambda: 1
bound = functools.partial(functools.partial(own, 1))
cached = functools.lru_cache(own)
timed = other.decorates(own)
twice_timed = other.decorates(other.decorates(own))
own_decorator = lambda f: functools.wraps(f)(lambda *a, **k: f(*a, **k))
decorated = own_decorator(own)
dispatched = functools.singledispatch(own)
made_a_task = task(system)

# What is not.
sh = subprocess.getoutput
renamed = run
opened = Popen
evaluate = eval
bound_library = functools.partial(system, "true")
bound_twice = functools.partial(functools.partial(functools.partial(system)), "true")
makes_partials = functools.partial(functools.partial, system)
class Hidden(functools.partial):
    pass
hidden = Hidden(run)
cached_library = functools.lru_cache(run)
decorated_library = own_decorator(run)
decorated_deep = own_decorator(own_decorator(own_decorator(helper)))
foreign_method = Tool().do
foreign_object = Tool()
foreign_class_method = Tool.make
dict_method = {{}}.update
class OwnDict(dict):
    pass
own_dict_method = OwnDict().update
own_dict_class_method = OwnDict.fromkeys
connection_method = sqlite3.connect(":memory:").execute
made_method = types.MethodType(run, "true")
unbound = Tool.do
slot = operator.methodcaller("system", "true")
getter = operator.attrgetter("system")
generic = list[int]
a_module = os
a_text = "system"
class OwnPopen(Popen):
    pass
class OwnTool(Tool):
    pass
own_tool = OwnTool()
inherited_method = OwnTool().do
class OwnEnum(enum.Enum):
    A = 1
class Failure(Exception):
    pass
class ByMeta(metaclass=other.Meta):
    pass

class EvalMeta(type):
    __call__ = eval
class ByEval(metaclass=EvalMeta):
    pass

# What lies about where it comes from.
def _copy(f):
    return types.FunctionType(f.__code__, f.__globals__, f.__name__, f.__defaults__, f.__closure__)
liar = _copy(helper)
liar.__module__ = __name__
liar.__qualname__ = "liar"
LyingTool = type("LyingTool", (Tool,), {{"__module__": __name__}})
lying_object = Tool()
lying_object.__module__ = __name__
lying_object.__wrapped__ = None
class Maker:
    def __getattr__(self, name):
        return own
    __call__ = subprocess.run
makes_things_up = Maker()
class Static:
    __call__ = staticmethod(system)
static_call = Static()
class Direct:
    __call__ = system
direct_call = Direct()
class ByClass:
    __call__ = classmethod(run)
class_call = ByClass()
class Bound:
    __call__ = staticmethod(functools.partial(system, "true"))
bound_call = Bound()
class Makes:
    __call__ = Popen
makes_call = Makes()
class Within:
    __call__ = Static()
call_within = Within()
class Deep:
    __call__ = None
for _ in range(200):
    Deep = type("Deep", (), {{"__call__": Deep() if Deep.__call__ else system}})
deep_call = Deep()
class Ring:
    pass
Ring.__call__ = ring_call = Ring()
endless = own_decorator(own)
endless.__wrapped__ = endless
sys.modules[__name__ + ".aliased"] = subprocess

def __getattr__(name):
    if name == "made_up":
        return subprocess.run
    raise AttributeError(name)
"""

OTHER = """
import functools

def helper(*a):
    return a

def decorates(f):
    @functools.wraps(f)
    def wrapper(*a, **k):
        return f(*a, **k)
    return wrapper

class Meta(type):
    def __call__(cls, *a):
        return a

class Tool:
    def __init__(self, *a):
        self.a = a
    def __call__(self, *a):
        return a
    def do(self, *a):
        return a
    @classmethod
    def make(cls, *a):
        return a
"""

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


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A worker's own package, full of disguises, and one that is installed beside it and offers nothing."""
    folder = tmp_path_factory.mktemp("policy")
    own, other = (f"{word}_{uuid.uuid4().hex[:8]}" for word in ("own", "other"))
    (folder / own / "_inner").mkdir(parents=True)
    (folder / own / "sub").mkdir()
    (folder / own / "__init__.py").write_text(DISGUISES.format(other=other))
    (folder / own / "sub" / "__init__.py").write_text("def deep():\n    return 1\n")
    (folder / own / "_inner" / "__init__.py").write_text("def deep():\n    return 1\n")
    (folder / f"{other}.py").write_text(OTHER)
    (folder / f"{own}thing.py").write_text("def own():\n    return 1\n")
    sys.path.insert(0, str(folder))
    yield own, other
    sys.path.remove(str(folder))
    forget_modules([str(folder)])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Importable, and forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    forget_modules([str(tmp_path)])


def job(text: str) -> Job:
    return Job(run_id=str(uuid.uuid4()), flow_name="f", tag="t", submitted_at=1.0, workflow_yaml=textwrap.dedent(text))


def calling(path: str) -> Job:
    return job(f"tasks: {{it: {{callable: {json.dumps(path)}}}}}\nflow: {{graph: it}}")


def builder(resolver: Callable[[str], Any] | None = None, *allow: str, **more: Any) -> FlowBuilder:
    return FlowBuilder(resolver, YamlFlowFiles(262_144), allow, **more)


def refusal_of(build: FlowBuilder, path: str) -> str:
    with pytest.raises(CallableRefused) as caught:
        build(calling(path))
    return str(caught.value)


def written(folder: Path, **files: str) -> None:
    for name, text in files.items():
        place = folder / (name.replace("__", "/") + ".py")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


def unique(word: str) -> str:
    return f"{word}_{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def build(names: tuple[str, str]) -> FlowBuilder:
    """Of a worker with that package: to find out all that it offers takes longer than a file."""
    return builder(None, own=[names[0]])


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
        for build in (builder(), builder(None, "math")):
            with pytest.raises(CallableRefused):
                build(job(text))
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

        assert builder(resolve)(calling(f"{__name__}:unique"))
        assert builder(functools.lru_cache(resolve))(calling(f"{__name__}:unique"))
        refusal_of(builder(dict[str, Flow]().__getitem__), f"{__name__}:unique")


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


PLUG_IN = """
import subprocess
from subprocess import run

def work():
    return 1

def register(registry):
    registry.register_callable(work, name="demo/work")
"""


def distribution(folder: Path, name: str, entry_points: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


class TestAPlugIn:
    def test_offers_its_package_by_callable_and_its_tasks_by_use(self, folder: Path) -> None:
        """DESIGN 7, ENG-54"""
        package = unique("plug")
        written(folder, **{package: PLUG_IN})
        distribution(folder, package, f"[pyoco.tasks]\nplug = {package}:register\n")
        build = builder()
        assert build(calling(f"{package}:work"))
        assert build(job("tasks: {it: {use: demo/work}}\nflow: {graph: it}"))
        assert "belongs to subprocess" in refusal_of(build, f"{package}:run")

    @pytest.mark.parametrize("group", ["console_scripts", "pyoco.task", "pyoco", "pyoco.tasks.more"])
    def test_of_another_group_offers_nothing(self, folder: Path, group: str) -> None:
        package = unique("plug")
        written(folder, **{package: PLUG_IN})
        distribution(folder, package, f"[{group}]\ndemo/work = {package}:register\n")
        build = builder()
        refusal_of(build, f"{package}:work")
        for name in ("demo/work", package, f"{package}:work"):
            with pytest.raises(FlowNotResolved):
                build(job(f"tasks: {{it: {{use: '{name}'}}}}\nflow: {{graph: it}}"))
        assert package not in sys.modules

    @pytest.mark.parametrize("value", ["os:system", "subprocess:run", "pyoco_server.wiring:versions"])
    def test_that_points_into_the_library_or_the_worker_does_not_offer_those(self, folder: Path, value: str) -> None:
        distribution(folder, unique("odd"), f"[pyoco.tasks]\nodd = {value}\n")
        refusal_of(builder(), value)

    @pytest.mark.parametrize("value", ["", "::", "no_such_module:x", "nothing"])
    def test_that_is_broken_hurts_nobody_else(self, folder: Path, value: str) -> None:
        package = unique("plug")
        written(folder, **{package: PLUG_IN})
        distribution(folder, unique("odd"), f"[pyoco.tasks]\nodd = {value}\n")
        distribution(folder, package, f"[pyoco.tasks]\nplug = {package}:register\n")
        assert builder()(job("tasks: {it: {use: demo/work}}\nflow: {graph: it}"))

    def test_in_a_shared_namespace_offers_its_own_part_of_it(self, folder: Path) -> None:
        space = unique("company")
        for name in ("plug", "secrets"):
            (folder / space / name).mkdir(parents=True)
            (folder / space / name / "__init__.py").write_text(PLUG_IN)
        distribution(folder, "one", f"[pyoco.tasks]\nplug = {space}.plug:register\n")
        build = builder()
        assert build(calling(f"{space}.plug:work"))
        refusal_of(build, f"{space}.secrets:work")


class TestAWheel:
    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[Path]:
        place = tmp_path / "wheel"
        place.mkdir()
        place_wheels([str(place)])
        yield place
        remove_wheels([str(place)])
        forget_modules([str(place)])

    def test_offers_its_modules(self, place: Path) -> None:
        module = unique("wheel")
        written(place, **{module: PLUG_IN})
        build = builder(environment=Environment((str(place),), (module,)))
        assert build(calling(f"{module}:work"))
        assert "belongs to subprocess" in refusal_of(build, f"{module}:run")
        refusal_of(builder(), f"{module}:work")

    def test_does_not_offer_what_it_merely_has_the_name_of(self, place: Path, folder: Path) -> None:
        """The worker's own module comes first on the path, and is not on offer; nor is a part of the library."""
        module = unique("twin")
        written(place, **{module: PLUG_IN, "random": PLUG_IN, "yaml": PLUG_IN})
        written(folder, **{module: "raise SystemExit('imported')\n"})
        build = builder(environment=Environment((str(place),), (module, "random", "yaml", "pyoco")))
        for path in (f"{module}:work", "random:work", "random:Random", "yaml:load", "pyoco:run"):
            refusal_of(build, path)
        assert module not in sys.modules

    def test_offers_its_own_part_of_a_namespace(self, place: Path, folder: Path) -> None:
        """What is installed on the worker below the same name is not on offer, and not imported to find out."""
        space = unique("company")
        for home, name in ((place, "flows"), (folder, "secrets")):
            (home / space / name).mkdir(parents=True)
            (home / space / name / "__init__.py").write_text(PLUG_IN)
        build = builder(environment=Environment((str(place),), (space,)))
        assert build(calling(f"{space}.flows:work"))
        refusal_of(build, f"{space}.secrets:work")
        assert f"{space}.secrets" not in sys.modules

    @pytest.mark.parametrize("target", ["yaml:load", "os:system", "pyoco_server.wiring:versions"])
    def test_cannot_offer_others_by_an_entry_point(self, place: Path, target: str) -> None:
        distribution(place, unique("odd"), f"[pyoco.tasks]\nodd = {target}\n")
        refusal_of(builder(environment=Environment((str(place),), ())), target)


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
