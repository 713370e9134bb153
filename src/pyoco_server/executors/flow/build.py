"""From a job to a flow: by name through the worker's resolver, or from the flow.yaml it carries."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from importlib import metadata

from pyoco.core.models import Flow, Task
from pyoco.discovery.loader import TaskLoader
from pyoco.dsl.graph import build_flow_from_graph
from pyoco.dsl.syntax import TaskWrapper
from pyoco.schemas.config import FlowConfig, PyocoConfig, RuntimeConfig, TaskConfig

from pyoco_server.core.flow_file import FlowFile
from pyoco_server.core.job import Job
from pyoco_server.errors import FlowNotResolved, InvalidFlow, UsageError
from pyoco_server.ports.flow_files import FlowFiles

__all__ = ["FlowBuilder", "load_resolver"]

Resolver = Callable[[str], Flow]


def load_resolver(spec: str) -> Resolver:
    """The callable that `module:callable` names (FLOW-463). Raises UsageError (FLOW-470)."""
    module_name, colon, attribute = spec.partition(":")
    if not colon or not module_name or not attribute:
        raise UsageError(f"the flow resolver {spec!r} must be module:callable, for example my_flows:resolve")
    try:
        target: object = importlib.import_module(module_name)
        for part in attribute.split("."):
            target = getattr(target, part)
    except Exception as error:  # somebody else's module: whatever its import throws is the answer
        raise UsageError(f"the flow resolver {spec!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(target):
        raise UsageError(f"the flow resolver {spec!r} is not callable")
    return target


class FlowBuilder:
    """Builds the flow of a job. Nothing of one job is visible in the next (FLOW-377)."""

    def __init__(self, resolver: Resolver | None, files: FlowFiles, allow: Sequence[str] = ()) -> None:
        self._resolver, self._files = resolver, files
        self._allow = frozenset(allow) | _own_modules(resolver)

    def __call__(self, job: Job) -> Flow:
        """Raises InvalidFlow, FlowNotResolved, or what the resolver itself throws (FLOW-323)."""
        if job.workflow_yaml is None:
            return self._by_name(job.flow_name)
        return self._from_file(self._files.read(job.workflow_yaml.encode()), job.flow_name)

    def _by_name(self, flow_name: str) -> Flow:
        if self._resolver is None:  # FLOW-324
            raise FlowNotResolved(f"this worker has no flow resolver, so it cannot run flow {flow_name!r} by name")
        try:
            flow = self._resolver(flow_name)
        except KeyError as error:
            raise FlowNotResolved(f"this worker has no flow {flow_name!r}") from error
        # The resolver may hand out the same object each time: its name is set on a copy (ENG-6).
        named = copy.copy(flow)
        named.name = flow_name
        return named

    def _from_file(self, file: FlowFile, flow_name: str) -> Flow:
        for name, spec in file.tasks.items():
            if spec.callable is not None:
                self._check_callable(name, spec.callable)
        said = io.StringIO()
        try:
            # The loader tells of failed imports on stdout only (ENG-52); we want it in the error.
            with contextlib.redirect_stdout(said):
                loader = _PrivateLoader(_config_of(file))
                loader.load()
            for name, spec in file.tasks.items():
                if spec.callable is not None and name in loader.tasks:
                    self._check_home(name, spec.callable)
            return build_flow_from_graph(
                graph=file.graph, tasks=loader.tasks, pipes=dict(file.pipes), flow_name=flow_name
            )
        except (InvalidFlow, FlowNotResolved):
            raise
        except BaseException as error:  # FLOW-326: whatever keeps the flow from being built, a sys.exit() included
            hint = " ".join(said.getvalue().split())
            raise FlowNotResolved(f"{type(error).__name__}: {error}" + (f" ({hint})" if hint else "")) from error

    def _check_callable(self, task: str, path: str) -> None:
        """A flow.yaml may name only code that this worker offers. Decided before anything is imported."""
        module, _, _ = path.partition(":")
        package = module.partition(".")[0]
        if package in sys.stdlib_module_names and package not in self._allow and module not in self._allow:
            raise FlowNotResolved(f"task {task!r} names {path!r}, which belongs to the standard library")
        if not self._admits(module):
            raise FlowNotResolved(
                f"task {task!r} names {path!r}, which this worker does not offer; "
                f"allow it with PYOCO_CALLABLE_ALLOW={package}"
            )

    def _check_home(self, task: str, path: str) -> None:
        """What a module has imported for its own use is not on offer: `my_flows:run` must not be subprocess.run."""
        module, _, attribute = path.partition(":")
        target: object = getattr(sys.modules[module], attribute)
        if isinstance(target, Task | TaskWrapper):  # somebody made a task of it, wherever it comes from
            return
        while isinstance(target, functools.partial):
            target = target.func
        home = getattr(target, "__module__", None) or module
        is_library = module.partition(".")[0] in sys.stdlib_module_names  # allowed by name, with all that is in it
        if attribute.startswith("__") or not (is_library or self._admits(home)):
            raise FlowNotResolved(
                f"task {task!r} names {path!r}, which belongs to {home} and is not offered by this worker; "
                f"make a task of it, or allow it with PYOCO_CALLABLE_ALLOW={home}"
            )

    def _admits(self, module: str) -> bool:
        prefixes = [module[:end] for end in range(1, len(module) + 1) if end == len(module) or module[end] == "."]
        return any(prefix in self._allow for prefix in prefixes) or module.partition(".")[0] in _task_packages()


class _PrivateLoader(TaskLoader):  # type: ignore[misc]  # the engine is not typed
    """Task objects of modules and plug-ins are shared by every loader (ENG-53): work on copies."""

    def _register_task(self, name: str, task: Task) -> None:
        super()._register_task(name, self._clone_task(task, task.name))


def _config_of(file: FlowFile) -> PyocoConfig:
    return PyocoConfig(
        version=1,
        flow=FlowConfig(graph=file.graph, defaults=dict(file.defaults)),
        tasks={
            name: TaskConfig(
                callable=spec.callable,
                use=spec.use,
                inputs=copy.deepcopy(dict(spec.inputs)),
                outputs=list(spec.outputs),
            )
            for name, spec in file.tasks.items()
        },
        pipes=dict(file.pipes),
        runtime=RuntimeConfig(expose_env=list(file.expose_env)),
    )


def _own_modules(resolver: Resolver | None) -> frozenset[str]:
    """The worker's own flow modules: where its resolver lives, and what the operator told the engine to scan."""
    names = os.environ.get("PYOCO_DISCOVERY_MODULES", "").replace(",", " ").split()
    module = getattr(resolver, "__module__", None)
    package = module.partition(".")[0] if isinstance(module, str) else ""
    if package and package not in sys.stdlib_module_names:  # a partial or a bound method may live there
        names.append(package)
    return frozenset(names)


def _task_packages() -> frozenset[str]:
    """Top-level packages of installed distributions that offer pyoco tasks."""
    points = metadata.entry_points(group="pyoco.tasks")
    return frozenset(point.value.partition(":")[0].partition(".")[0] for point in points)
