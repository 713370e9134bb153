"""`pyoco-server new`: a project with a flow, a test and a README (APP-17)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pyoco_server.core.schedules.ids import NAME_RULE, is_schedule_name
from pyoco_server.errors import UsageError

__all__ = ["create_project"]

_FLOWS: Final = '''\
"""The flows of {name}."""

from pyoco_server import App, task

app = App("{name}")


@task(retry="3 times, exponential")
def fetch(url: str) -> str:
    """Return a page. Replace this with a request."""
    return f"<h1>{{url}}</h1>"


@task
def count(fetch: str) -> int:
    return len(fetch)


@app.flow
def measure(url: str) -> int:
    """Return the length of a page."""
    return fetch >> count
'''

_TEST: Final = """\
from flows import app, measure


def test_measure() -> None:
    with app.testing():
        assert measure.submit(url="example.com").result() == 20
"""

_README: Final = """\
# {name}

`flows.py` has one flow, `measure`. `test_flows.py` runs it without a server:

    pytest

Start a server that serves the app, with a dashboard:

    pyoco-server up flows:app

Then, in another terminal:

    python -c 'from flows import measure; print(measure.submit(url="example.com").result())'
"""

_FILES: Final = {"flows.py": _FLOWS, "test_flows.py": _TEST, "README.md": _README}


def create_project(place: Path) -> list[Path]:
    """Create the directory, unless it is there and empty, and return the files in it. Raises UsageError."""
    name = place.name
    if not is_schedule_name(name):
        raise UsageError(f"{name!r} cannot be the name of an app: it {NAME_RULE}, and is not `preview`")
    try:
        place.mkdir(parents=True, exist_ok=True)
        if any(place.iterdir()):
            raise UsageError(f"{place} exists and is not empty; choose another name")
        for file, text in _FILES.items():
            (place / file).write_text(text.format(name=name), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot create {place}: {error.strerror}") from error
    return [place / file for file in _FILES]
