"""A program as a user of Celery has written it, with its imports changed."""

from __future__ import annotations

import threading
from datetime import datetime
from typing import Any

from pyoco_server.compat.celery import Celery

app = Celery("shop.tasks")
#: What the tasks have done, by their names.
seen: list[Any] = []
held, let_go = threading.Event(), threading.Event()


class Flaky(Exception):
    """The first tries of `flaky` fail."""


@app.task
def add(x: int, y: int = 1) -> int:
    return x + y


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(name="shop.day")
def day(at: datetime) -> datetime:
    return at.replace(hour=0)


@app.task(bind=True, max_retries=2)
def asks(self: Any, until: int) -> list[int]:
    seen.append(self.request.retries)
    if self.request.retries < until:
        raise self.retry(countdown=0.01, exc=Flaky("not yet"))
    return [self.request.retries, until]


@app.task(autoretry_for=(Flaky,), max_retries=1, default_retry_delay=0.01)
def flaky() -> None:
    seen.append("flaky")
    raise Flaky("again")


@app.task(bind=True, default_retry_delay=3600)
def waits(self: Any) -> None:
    held.set()
    self.retry()


@app.task
def fails() -> None:
    raise Flaky("at once")


@app.task
def holds() -> None:
    held.set()
    assert let_go.wait(100)


@app.task(max_retries=0, default_retry_delay=0)
def calls() -> list[int]:
    seen.append("calls")
    found: list[int] = asks(9)
    return found
