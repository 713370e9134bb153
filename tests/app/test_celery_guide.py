"""What the guide on moving from Celery shows works: its programs are run as they stand."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyoco_server.executors.flow.served import load_app, offers_of
from support.documented import ROOT, Block, with_info
from support.memory_nats import new_memory_url
from support.sites import open_site

PAGE = ROOT / "docs" / "guides" / "moving-from-celery.md"
BLOCKS = [block for block in with_info("python", "text") if block.page == PAGE]


def named(file: str) -> Block:
    """The last block of this file: the first one is what it was before."""
    return [block for block in BLOCKS if block.file == file][-1]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("shop", "orders"):
        (tmp_path / f"{name}.py").write_text(named(f"{name}.py").text)
    yield tmp_path
    for name in ("shop", "orders"):
        sys.modules.pop(name, None)


def test_the_project_of_the_guide_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """APP-18, APP-19"""
    served = load_app("shop:app")
    (scheduled,) = (flow for flow in offers_of(served) if flow.schedule is not None)
    assert f"`app-{served.name}-{scheduled.name}`" in PAGE.read_text(encoding="utf-8")
    assert scheduled.schedule == {"when": {"cron": "0 6 * * *"}, "timezone": "Europe/Berlin"}
    with open_site(new_memory_url(), folder / "data", resolve=served.resolve) as site:
        monkeypatch.setenv("PYOCO_SERVER_URL", site.url)
        importlib.import_module("orders")
        site.rest()
    (shown,) = (block.text for block in BLOCKS if block.info == "text")
    assert capsys.readouterr().out == shown
