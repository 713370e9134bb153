"""What the guide shows works: its programs are run as they stand, one after the other, against real servers."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import httpx
import pytest
from examples import run_worker, watch_many

from pyoco_server import NatsBackendConfig
from support.gateways import gateway_process
from support.servers import NatsServer
from support.waiting import eventually
from support.wheels import write_wheel

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "python-client.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.usefixtures("cold_processes")  # as a user starts it
async def test_the_programs_of_the_guide_run(
    own_nats_server: NatsServer,
    unused_port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """FLOW-401 to FLOW-416"""
    config = NatsBackendConfig(nats_url=own_nats_server.url, data_dir=str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    write_wheel(tmp_path)
    stop = asyncio.Event()
    with gateway_process(config, unused_port, tmp_path / "gateway.log") as url:
        await eventually(lambda: asyncio.to_thread(is_ready, url), 30)
        monkeypatch.setenv("PYOCO_SERVER_URL", url)
        working = asyncio.create_task(run_worker.work(config, stop))
        try:
            for number, program in enumerate(PROGRAMS):
                code = compile(program.replace("http://127.0.0.1:8000", url), f"block {number}", "exec")
                await asyncio.to_thread(exec, code, {"__name__": "guide"})
            assert await watch_many.main(["Dora"]) == 0
        finally:
            stop.set()
            await working
    shown = capsys.readouterr().out
    assert "HELLO, YOU!" in shown
    assert "snapshot COMPLETED" in shown
    assert "422 ERR-PYOCO-0002" in shown
    assert "Dora: COMPLETED" in shown
    assert len(PROGRAMS) == 8
