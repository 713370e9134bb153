"""Hosts that serve an app: what they report, what they run, and modules that cannot be loaded."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.core.job import Job, encode_job
from pyoco_server.core.outcome import Completed, DeadReason, Failed, Outcome
from pyoco_server.core.values.kept import InRecord, read_entry
from pyoco_server.doors.cli.served_app import check_one_source
from pyoco_server.errors import AppNotLoaded, UsageError
from pyoco_server.executors.flow.served import load_app, offers_of
from pyoco_server.executors.host import wire
from pyoco_server.executors.host.pool import HostExecutor
from pyoco_server.executors.port import Work

MODULE = '''
import threading

from pyoco_server import App, task

app = App("served", pickle=True)

@task
def shout(text: str, times: int = 2) -> str:
    return text.upper() * times

@task
def odd() -> object:
    return {"codec": complex(1, 2)}

@app.flow(tool=True)
def loud(text: str, times: int = 2) -> str:
    """Shout."""
    return shout

@app.flow
def pickled() -> object:
    return odd()
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, which is importable."""
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def executor(app: str) -> HostExecutor:
    settings = wire.Settings(None, (), 1 << 16, 1 << 17, 0, app=app)
    return HostExecutor(settings, slots=1, runs_max=10, timeout_seconds=0)


def work(flow_name: str, **params: Any) -> Work:
    job = Job(run_id=str(uuid.uuid4()), flow_name=flow_name, tag="default", submitted_at=1.0, params=params)
    return Work(job, encode_job(job))


async def outcome_of(hosts: HostExecutor, what: Work) -> Outcome:
    execution = await hosts.begin(what, lambda: None)
    assert execution is not None
    return await execution.outcome()


async def test_a_host_reports_and_runs_the_flows_of_an_app(folder: Path) -> None:
    """APP-9, APP-10, APP-12, RES-23: the worker's own process has not imported the module."""
    (folder / "served_flows.py").write_text(MODULE)
    hosts = executor("served_flows:app")
    before = hosts.offered
    assert before is None
    await hosts.start()
    try:
        offered = hosts.offered
        assert offered is not None
        assert [(flow.name, flow.app, flow.doc, flow.tool) for flow in offered] == [
            ("loud", "served", "Shout.", True),
            ("pickled", "served", "", False),
        ]
        assert "served_flows" not in sys.modules
        done = await outcome_of(hosts, work("loud", text="a"))
        assert isinstance(done, Completed)
        assert done.progress.task_records["shout"]["output"] == "AA"
        refused = await outcome_of(hosts, work("loud", text="a", tmies=3))
        assert isinstance(refused, Failed)
        assert refused.why is DeadReason.INVALID_JOB
        assert refused.failure is None
        assert "no param 'tmies'; did you mean times?" in refused.message
        unknown = await outcome_of(hosts, work("quiet"))
        assert isinstance(unknown, Failed)
        assert unknown.why is DeadReason.FLOW_NOT_FOUND
        pickled = await outcome_of(hosts, work("pickled"))
        assert pickled.kept is not None
        assert pickled.kept.outputs is not None
        entry = read_entry(pickled.kept.outputs["odd"])
        assert isinstance(entry, InRecord)
        assert json.loads(entry.data)["codec"]["$pyoco"] == "pickle"
    finally:
        await hosts.stop()


async def test_a_module_that_cannot_be_loaded_stops_the_worker(folder: Path) -> None:
    """APP-9"""
    (folder / "broken_flows.py").write_text("import sys\nimport no_such_module\n")
    hosts = executor("broken_flows:app")
    with pytest.raises(AppNotLoaded) as raised:
        await hosts.start()
    await hosts.stop()
    assert raised.value.text.err_id == "ERR-PYOCO-0072"
    assert "ModuleNotFoundError: No module named 'no_such_module'" in str(raised.value)
    assert "broken_flows.py, line 2: import no_such_module" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "spec", "says"),
    [
        ("app = 1", "bad_flows:app", "'app' is a int, not an App"),
        ("app = 1", "bad_flows:other", "module 'bad_flows' has no 'other'"),
        ("def f(:\n", "bad_flows:app", "SyntaxError"),
        ("import sys; sys.exit(3)", "bad_flows:app", "SystemExit: 3"),
        ("", "no_such_flows:app", "ModuleNotFoundError: No module named 'no_such_flows'"),
        (
            "from pyoco_server import App\napp = App('a')\napp.flow(name='f')(lambda url: None)",
            "bad_flows:app",
            "app 'a': TypeError: the function of flow 'f' returned NoneType",
        ),
    ],
)
def test_what_is_wrong_with_an_app_is_said(folder: Path, text: str, spec: str, says: str) -> None:
    """APP-9"""
    (folder / "bad_flows.py").write_text(text)
    with pytest.raises(AppNotLoaded) as raised:
        offers_of(load_app(spec))
    assert says in str(raised.value)


@pytest.mark.parametrize(("app", "resolver"), [("a:app", "b:resolve"), ("a", None), ("a:", None), (":app", None)])
def test_an_app_is_named_once_and_in_full(app: str, resolver: str | None) -> None:
    """APP-9"""
    with pytest.raises(UsageError, match=r"not both|it is MODULE:APP"):
        check_one_source(app, resolver)
