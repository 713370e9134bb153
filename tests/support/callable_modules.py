"""Modules whose callables a flow file may or may not name, and a builder for such flows."""

from __future__ import annotations

import json
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.core.job import Job
from pyoco_server.errors import CallableRefused
from pyoco_server.executors.flow.build import FlowBuilder
from pyoco_server.executors.flow.paths import forget_modules
from pyoco_server.executors.flow.reader import YamlFlowFiles

__all__ = [
    "DISGUISES",
    "OTHER",
    "build",
    "builder",
    "calling",
    "folder",
    "job",
    "names",
    "refusal_of",
    "unique",
    "written",
]

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
