"""`chain`, `group` and `chord`: each is one run, whose params say which tasks there are."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pyoco_server.compat.celery.refusals import SIGNATURE, refusal
from pyoco_server.compat.celery.sending import Sending

if TYPE_CHECKING:
    from pyoco_server.compat.celery.app import Celery
    from pyoco_server.compat.celery.results import AsyncResult
    from pyoco_server.compat.celery.tasks import Task

__all__ = ["KINDS", "Canvas", "Part", "Signature", "chain", "chord", "group", "signature"]

#: Of a canvas, and of its flow.
KINDS = ("chain", "group", "chord")
#: Stands for the output of the task before.
_BEFORE: Any = object()


class Part(abc.ABC):
    """A task with arguments, or a canvas."""

    @property
    @abc.abstractmethod
    def app(self) -> Celery: ...

    @abc.abstractmethod
    def document(self, takes: bool) -> dict[str, Any]:
        """Return what the params of a run have. `takes`: it gets the output of the task before. Raises TypeError for
        arguments that do not fit."""

    @abc.abstractmethod
    def given(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Part:
        """Return the same with more arguments: positional ones before its own."""

    @abc.abstractmethod
    def apply_async(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncResult: ...

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult:
        return self.apply_async(args, kwargs)

    def __or__(self, other: Part) -> chain:
        return chain(self, other)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise refusal(name, SIGNATURE, "Signature")


class Signature(Part):
    """A task with arguments. Called, it is the task in this process."""

    def __init__(
        self, task: Task, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, immutable: bool = False
    ) -> None:
        self.task, self.args, self.kwargs, self.immutable = task, tuple(args), dict(kwargs), immutable

    def __repr__(self) -> str:
        return f"<{self.task.name}{self.args!r}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found = self.given(args, kwargs)
        return found.task(*found.args, **found.kwargs)

    @property
    def app(self) -> Celery:
        return self.task.app

    def given(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Signature:
        if self.immutable:  # Celery's meaning of it
            return self
        return Signature(self.task, (*args, *self.args), {**self.kwargs, **kwargs})

    def document(self, takes: bool) -> dict[str, Any]:
        before = (_BEFORE,) if takes and not self.immutable else ()
        params = self.task.params.bind((*before, *self.args), self.kwargs)
        into = next((name for name, value in params.items() if value is _BEFORE), None)
        params.pop(into or "", None)
        return {"task": self.task.name, "params": params, "before": into}

    def apply_async(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncResult:
        found = self.given(tuple(args or ()), kwargs or {})
        return self.task.apply_async(found.args, found.kwargs, **options)


class Canvas(Part):
    """Several parts. Called, it is submitted."""

    kind: ClassVar[str]

    def __init__(self, *parts: Part | Iterable[Part]) -> None:
        """Takes parts, or one iterable of them. Raises TypeError, ValueError."""
        found = list(parts[0]) if len(parts) == 1 and not isinstance(parts[0], Part) else list(parts)
        for part in found:
            if not isinstance(part, Part):
                raise TypeError(f"{self.kind} takes signatures such as task.s(1), not {part!r}")
        self.parts: tuple[Part, ...] = tuple(part for part in found if isinstance(part, Part))
        if not self.parts:
            raise ValueError(f"{self.kind} has no tasks")
        if len({id(part.app) for part in self.parts}) > 1:
            raise ValueError(f"{self.kind} has tasks of several apps")

    @property
    def app(self) -> Celery:
        return self.parts[0].app

    def __call__(self, *args: Any, **kwargs: Any) -> AsyncResult:
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncResult:
        """Submit one run for all tasks. Raises TypeError for arguments that do not fit."""
        document = self.given(tuple(args or ()), kwargs or {}).document(takes=False)
        return self.app.send(self.app.canvas(self.kind), (document,), {}, Sending.read(options))


class chain(Canvas):  # noqa: N801  (Celery's name)
    """One task after another; each gets the output of the one before as its first argument."""

    kind = "chain"

    def __init__(self, *parts: Part | Iterable[Part]) -> None:
        super().__init__(*parts)
        flat = [part.parts if isinstance(part, chain) else (part,) for part in self.parts]
        self.parts = tuple(part for some in flat for part in some)

    def given(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> chain:
        return chain(self.parts[0].given(args, kwargs), *self.parts[1:])

    def document(self, takes: bool) -> dict[str, Any]:
        first, *others = self.parts
        return {"chain": [first.document(takes), *(part.document(takes=True) for part in others)]}


class group(Canvas):  # noqa: N801  (Celery's name)
    """Tasks at the same time. Its value is the list of their values."""

    kind = "group"

    def given(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> group:
        return group(*(part.given(args, kwargs) for part in self.parts))

    def document(self, takes: bool) -> dict[str, Any]:
        return {"group": [part.document(takes) for part in self.parts]}


class chord(Canvas):  # noqa: N801  (Celery's name)
    """A group, and a task that gets the list of its values."""

    kind = "chord"

    def __init__(self, header: group | Iterable[Part], body: Part | None = None) -> None:
        self._header = header if isinstance(header, group) else group(header)
        self._body = body
        super().__init__(self._header, *(() if body is None else (body,)))

    def __call__(self, body: Part | None = None, /, *args: Any, **kwargs: Any) -> AsyncResult:
        """`chord(header)(callback)`."""
        found = self if body is None else chord(self._header, body)
        return found.apply_async(args, kwargs)

    def given(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> chord:
        return chord(self._header.given(args, kwargs), self._body)

    def document(self, takes: bool) -> dict[str, Any]:
        if self._body is None:
            raise TypeError("the chord has no callback: chord(header)(callback)")
        return {"chain": [self._header.document(takes), self._body.document(takes=True)]}


def signature(
    name: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    immutable: bool = False,
    app: Celery | None = None,
) -> Signature:
    """Return the signature of a task by its name, in the app that was made last if none is given. Raises KeyError."""
    from pyoco_server.compat.celery.app import current_app  # noqa: PLC0415 - it needs this module

    return Signature((app or current_app()).tasks[name], tuple(args), kwargs or {}, immutable=immutable)
