"""A task of the shim: a flow of one task, and a step of a canvas."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from pyoco_server.app.signature import FlowSignature
from pyoco_server.compat.celery.canvas import Signature
from pyoco_server.compat.celery.exceptions import MaxRetriesExceededError, Retry
from pyoco_server.compat.celery.refusals import TASK, TASK_OPTIONS, refusal, refuse_all
from pyoco_server.compat.celery.sending import Sending
from pyoco_server.core.retries.policy import TRIES_MAX
from pyoco_server.core.retries.reading import read_task_timeout
from pyoco_server.core.retries.task_course import TaskTerms
from pyoco_server.executors.flow.asked_retries import current_try, within
from pyoco_server.executors.flow.own_tasks import OwnTask, policy_of

if TYPE_CHECKING:
    from pyoco_server.compat.celery.app import Celery
    from pyoco_server.compat.celery.results import AsyncResult

__all__ = ["Request", "Task", "TaskOptions"]

_RETRIES_DEFAULT, _DELAY_DEFAULT, _BACKOFF_SECONDS_MAX = 3, 180.0, 600.0
_RETRY = f"{Retry.__module__}.{Retry.__qualname__}"


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """The options of `@app.task`."""

    bind: bool = False
    name: str | None = None
    max_retries: int = _RETRIES_DEFAULT
    autoretry_for: tuple[type[BaseException], ...] = ()
    retry_backoff: bool | float = False
    default_retry_delay: float = _DELAY_DEFAULT
    time_limit: float | None = None

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> TaskOptions:
        """Raises NotOffered, ValueError."""
        refuse_all((name for name in options if name not in cls.__dataclass_fields__), TASK_OPTIONS, "task")
        if "max_retries" in options and options["max_retries"] is None:
            hint = f"a number up to {TRIES_MAX - 1}"
            raise refusal("max_retries=None", {"max_retries=None": hint}, "task")
        return cls(**options)

    def terms(self) -> TaskTerms:
        """Return the policy: only what asks for it is tried again (APP-19)."""
        waits: dict[str, Any] = {"backoff": "fixed", "delay": self.default_retry_delay, "jitter": 0}
        if self.retry_backoff:
            first = float(self.retry_backoff)
            waits = {"backoff": "exponential", "delay": first, "max_delay": max(first, _BACKOFF_SECONDS_MAX)}
        policy = policy_of({"tries": self.max_retries + 1, **waits, "retry_on": [_RETRY]})
        return TaskTerms(retry=policy, timeout=None if self.time_limit is None else read_task_timeout(self.time_limit))


@dataclass(frozen=True)
class Request:
    """`self.request`: the run of the task, and how many of its tries have failed."""

    id: str | None
    retries: int

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise refusal(name, {}, "request")


class Task:
    """Called, it is the function itself, in this process."""

    def __init__(self, app: Celery, function: Callable[..., Any], options: TaskOptions, name: str) -> None:
        self.app, self.name, self.max_retries = app, name, options.max_retries
        self._function, self._options = function, options
        self.terms = options.terms()
        self.step_name = function.__name__
        #: The function as a step of a flow, with its parameters and without `self`.
        self.step: Callable[..., Any] = _like(function, self._executed, options.bind)
        self.params = FlowSignature(name, _checked(name, self.step))
        node = OwnTask(self.step, self.step_name, self.terms)
        self.flow = app.app.flow(name=name)(_like(function, lambda **_: node, options.bind))
        functools.update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"<task {self.name} of app {self.app.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with within(None):  # another task may call it: its tries are its own
            return self._called(*args, **kwargs)

    def _called(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(self, *args, **kwargs) if self._options.bind else self._function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise refusal(name, TASK, "Task")

    @property
    def request(self) -> Request:
        current = current_try()
        return Request(None, 0) if current is None else Request(current.run_id, current.number - 1)

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult:
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncResult:
        """Submit a run. Raises TypeError for arguments that do not fit, NotOffered for options that do not exist."""
        return self.app.send(self.flow, tuple(args or ()), dict(kwargs or {}), Sending.read(options))

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        return Signature(self, args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        return Signature(self, args, kwargs, immutable=True)

    def AsyncResult(self, id: str) -> AsyncResult:  # noqa: A002, N802  (Celery's names)
        return self.app.AsyncResult(id)

    def retry(self, *, countdown: float | None = None, exc: BaseException | None = None, **other: Any) -> NoReturn:
        """End this try. In the last one raises `exc`, or MaxRetriesExceededError."""
        refuse_all(other, {"eta": "countdown=", "max_retries": "@app.task(max_retries=...)"}, "retry")
        if countdown is None and self._options.retry_backoff:
            countdown = self._options.default_retry_delay
        self._again(exc, countdown)

    def _executed(self, **arguments: Any) -> Any:
        try:
            return self._called(**arguments)
        except Retry:
            raise
        except self._options.autoretry_for as error:
            self._again(error, None)

    def _again(self, error: BaseException | None, after: float | None) -> NoReturn:
        current = current_try()
        if current is None or current.number > self.max_retries:
            if error is not None:
                raise error
            raise MaxRetriesExceededError(f"{self.name} has been tried {self.max_retries + 1} times")
        why = f"{type(error).__name__}: {error}" if error is not None else "asked for by the task"
        raise Retry(why, None if after is None else max(float(after), 0.0)) from error


def _like(function: Callable[..., Any], called: Callable[..., Any], bind: bool) -> Callable[..., Any]:
    """Return a function that calls `called` with named arguments, and looks like the task without its `self`."""

    @functools.wraps(function)
    def looks(**arguments: Any) -> Any:
        return called(**arguments)

    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1 if bind else 0 :]
    names = {each.name for each in parameters} | {"return"}
    looks.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    looks.__annotations__ = {name: hint for name, hint in function.__annotations__.items() if name in names}
    return looks


def _checked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Raises NotOffered for parameters that a run cannot have, ValueError for `ctx`."""
    for each in inspect.signature(function).parameters.values():
        if each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL, each.VAR_KEYWORD):
            text = f"parameter {each} of task {name}"
            raise refusal(text, {text: "parameters with names: a list, or a dict"})
        if each.name == "ctx":
            raise ValueError(f"task {name}: rename parameter 'ctx', which is the context of a run")
    return function
