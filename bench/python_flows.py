"""The app that `bench python` measures."""

from __future__ import annotations

from pyoco_server import App, task

__all__ = ["app", "blob", "noop"]

app = App("bench")


@task
def nothing(number: int) -> int:
    return number


@task
def zeros(size: int) -> bytes:
    return bytes(size)


@app.flow
def noop(number: int) -> int:
    return nothing(number)


@app.flow
def blob(size: int) -> bytes:
    return zeros(size)
