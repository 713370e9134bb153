"""Builds the flow of a job: by name through the worker's resolver, or from the flow.yaml in the job."""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from pyoco.core.models import Flow, Task
from pyoco.discovery.loader import TaskLoader
from pyoco.dsl.graph import build_flow_from_graph, parse_graph, resolve_pipe_refs
from pyoco.dsl.graph_terms import Pipeline, SwitchTerm, TaskTerm
from pyoco.dsl.syntax import TaskWrapper
from pyoco.schemas.config import FlowConfig, PyocoConfig, RuntimeConfig, TaskConfig

from pyoco_server.core.flow_file import FlowFile
from pyoco_server.core.job import Job
from pyoco_server.core.outcome import Terms
from pyoco_server.core.retries.policy import NO_RETRY, to_document
from pyoco_server.core.wheel_sync import NO_WHEELS, Environment
from pyoco_server.errors import FlowNotResolved, InvalidFlow, UsageError
from pyoco_server.executors.flow.exception_text import exception_text
from pyoco_server.executors.flow.of_app import graph_for
from pyoco_server.executors.flow.offer import Offer, homes_of, package_of
from pyoco_server.executors.flow.terms import say_of_flow, with_task_terms
from pyoco_server.ports.flow_files import FlowFiles

__all__ = ["FlowBuilder", "load_resolver"]

Resolver = Callable[[str], Flow]

_WORD = re.compile(r"\w+")
_ENV = "$env."
#: In a graph, where the dollar sign is optional.
_ENV_IN_GRAPH = re.compile(r"\benv\.(\w+)")


def load_resolver(spec: str) -> Resolver:
    """Import the callable named by `module:callable` (FLOW-463). Raises UsageError (FLOW-470)."""
    module_name, colon, attribute = spec.partition(":")
    if not colon or not module_name or not attribute:
        raise UsageError(f"the flow resolver {spec!r} must be module:callable, for example my_flows:resolve")
    try:
        target: object = importlib.import_module(module_name)
        for part in attribute.split("."):
            target = getattr(target, part)
    except Exception as error:  # third-party code: its import may raise anything
        raise UsageError(f"the flow resolver {spec!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(target):
        raise UsageError(f"the flow resolver {spec!r} is not callable")
    return target


class FlowBuilder:
    """Builds the flow of a job. No state of one job is visible to the next (FLOW-377).

    `allow`: modules that the operator lets a flow.yaml call. `own`: the modules that the operator declared as the
    flows' home; by default the module of the resolver. `secrets`: variables of this process that no flow.yaml may name.
    This is not a security boundary: an expression can find other ways to them.
    """

    def __init__(
        self,
        resolver: Resolver | None,
        files: FlowFiles,
        allow: Sequence[str] = (),
        *,
        own: Sequence[str] | None = None,
        environment: Environment = NO_WHEELS,
        secrets: AbstractSet[str] = frozenset(),
    ) -> None:
        self._resolver, self._files, self._allow = resolver, files, tuple(allow)
        self._secrets = secrets
        modules = own if own is not None else homes_of(resolver) if resolver is not None else ()
        self._own = frozenset(map(package_of, modules)) | _searched_modules()
        self._offer = Offer(self._own, self._allow, environment)

    def see(self, environment: Environment) -> None:
        """Build flows from this environment, starting with the next job: plug-ins are searched again."""
        self._offer = Offer(self._own, self._allow, environment)

    def warm(self) -> dict[str, str]:
        """Call the plug-ins of wheels once, without a run, to detect any that kills the process or never returns.

        Returns the errors of the others, by the directory of the wheel.
        """
        return self._offer.plug_ins.ask_wheels()

    def __call__(self, job: Job) -> Flow:
        """Build the flow. Raises InvalidFlow, FlowNotResolved, or whatever the resolver raises (FLOW-323)."""
        if job.workflow_yaml is None:
            return graph_for(self._by_name(job.flow_name), job.params)
        return self._from_file(self._files.read(job.workflow_yaml.encode()), job.flow_name)

    def _by_name(self, flow_name: str) -> Flow:
        if self._resolver is None:  # FLOW-324
            raise FlowNotResolved(f"this worker has no flow resolver, so it cannot run flow {flow_name!r} by name")
        try:
            flow = self._resolver(flow_name)
        except KeyError as error:
            raise FlowNotResolved(f"this worker has no flow {flow_name!r}") from error
        # The resolver may return the same object each time, so its name is set on a copy (ENG-6).
        named = copy.copy(flow)
        named.name = flow_name
        return named

    def _from_file(self, file: FlowFile, flow_name: str) -> Flow:
        for name, spec in file.tasks.items():
            if spec.callable is not None:
                self._offer.check_name(name, spec.callable)
        if self._secrets and (named := self._secrets & _variables_in(file)):
            raise FlowNotResolved(f"this worker keeps {', '.join(sorted(named))} from flows")
        output = io.StringIO()
        try:
            # The loader reports failed imports on stdout only (ENG-52); they belong in the error message.
            with contextlib.redirect_stdout(output):
                loader = _PrivateLoader(file, self._offer, output)
                loader.load()
            _say_of_tasks(file, loader.tasks)
            flow = build_flow_from_graph(
                graph=file.graph, tasks=loader.tasks, pipes=dict(file.pipes), flow_name=flow_name
            )
            retry = None if file.retry is None else {} if file.retry == NO_RETRY else to_document(file.retry)
            return say_of_flow(flow, Terms(retry, file.timeout))
        except (InvalidFlow, FlowNotResolved):
            raise
        except BaseException as error:  # FLOW-326: whatever prevents building the flow, including sys.exit()
            hint = " ".join(output.getvalue().split())
            raise FlowNotResolved(exception_text(error) + (f" ({hint})" if hint else "")) from error


def _say_of_tasks(file: FlowFile, tasks: Mapping[str, Task]) -> None:
    for name, spec in file.tasks.items():
        if spec.terms is not None and name in tasks:
            tasks[name].func = with_task_terms(tasks[name].func, spec.terms)


class _PrivateLoader(TaskLoader):  # type: ignore[misc]  # the engine is not typed
    """The engine's loader, except that it copies the task objects of modules and plug-ins, which all loaders share
    (ENG-53), and that it checks what a file may call."""

    def __init__(self, file: FlowFile, offer: Offer, output: io.StringIO) -> None:
        super().__init__(_config_of(file))
        self._file, self._offer, self._output = file, offer, output

    def _register_task(self, name: str, task: Task) -> None:
        super()._register_task(name, self._clone_task(task, task.name))

    def _load_explicit_task(self, name: str, conf: TaskConfig, callable_path: str) -> None:
        """Load a task. The name is resolved only once, so that the object checked is the object called."""
        module, _, attribute = callable_path.partition(":")
        try:
            target = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:  # reported as the engine does (ENG-52)
            self._output.write(f"Error loading task {name}: {error}\n")
            return
        self._offer.check_target(name, callable_path, target)
        made = target.task if isinstance(target, TaskWrapper) else target
        task = Task(func=made.func if isinstance(made, Task) else made, name=name)
        task.inputs, task.outputs = conf.inputs or {}, conf.outputs or []
        self.tasks[name] = task

    def _load_entry_point_plugins(self) -> None:
        """Load plug-ins as the engine does, but only those that the file needs."""
        names = _names_to_find(self._file)
        for plug_in in self._offer.plug_ins.needed(names, self.tasks) if names else ():
            if (fault := plug_in.register(self)) is not None:
                self._output.write(fault + "\n")


def _variables_in(file: FlowFile) -> set[str]:
    """Return the environment variables that the file reads."""
    inputs = (value for spec in file.tasks.values() for value in spec.inputs.values() if isinstance(value, str))
    named = {value.removeprefix(_ENV) for value in inputs if value.startswith(_ENV)}
    return named.union(*map(_ENV_IN_GRAPH.findall, (file.graph, *file.pipes.values())))


def _names_to_find(file: FlowFile) -> set[str]:
    """Return the names that plug-ins have to register: the targets of `use`, and steps that the file does not define.
    O(graph)."""
    called = {name for name, spec in file.tasks.items() if spec.callable is not None}
    if len(called) == len(file.tasks) and not file.pipes and called.issuperset(_WORD.findall(file.graph)):
        return set()  # the common case, without parsing the graph again
    used = {name: spec.use for name, spec in file.tasks.items() if spec.use is not None}
    steps = set(_steps_of(resolve_pipe_refs(parse_graph(file.graph), dict(file.pipes))))
    return (steps - called - used.keys()) | (set(used.values()) - called)


def _steps_of(pipeline: Pipeline) -> Iterator[str]:
    for term in pipeline.terms:
        if isinstance(term, TaskTerm):
            yield term.name
        elif isinstance(term, SwitchTerm):
            branches = [case.branch for case in term.cases] + ([term.default] if term.default is not None else [])
            for branch in branches:
                yield from _steps_of(branch)
        else:
            yield from _steps_of(term.body)


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


def _searched_modules() -> frozenset[str]:
    """Return the modules that the operator configured the engine to search for tasks."""
    return frozenset(os.environ.get("PYOCO_DISCOVERY_MODULES", "").replace(",", " ").split())
