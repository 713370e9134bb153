"""One delivery, from hand to answer: the corners that no flow reaches."""

from __future__ import annotations

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.flow_moves import accept
from pyoco_server.core.job import job_of
from pyoco_server.core.run import Caller, Submission
from pyoco_server.core.snapshot import encode, to_snapshot
from pyoco_server.core.states import RunState
from pyoco_server.ports.nats.link import Link
from pyoco_server.wiring import backend as wiring
from pyoco_server.worker import PyocoNatsWorker
from support.backends import consumer_state, dead_letters, jobs_left, run_now
from support.waiting import eventually


async def test_a_record_too_full_to_be_claimed_is_ended(link: Link, config: NatsBackendConfig) -> None:
    """FLOW-363: no worker ever could claim it, so it must not come again and again. A foreign producer wrote it."""
    async with wiring.open_backend(config, "tests") as backend:
        ask = Submission(flow_name="f", tag="default", tags=("default",), params={"x": ""})
        run = accept(ask, Caller(), backend.new_id(), backend.clock())
        room = config.max_run_snapshot_bytes - len(encode(to_snapshot(run)))
        full = Submission(flow_name="f", tag="default", tags=("default",), params={"x": "x" * (room - 20)})
        run = accept(full, Caller(), run.run_id, run.submitted_at)
        revision = await link.store(f"$KV.{config.runs_kv_bucket}.{run.run_id}", encode(to_snapshot(run)))
        await backend.queue.put(job_of(run, full, revision))
        worker = await PyocoNatsWorker.connect(config)
        assert await worker.run_once(5) == run.run_id
        await worker.close()
        ended = await run_now(backend, run.run_id)
        assert (ended.status, ended.reason) == (RunState.FAILED, "execution_error")
        assert ended.error is not None
        assert "ERR-PYOCO-0010" in ended.error
        assert [letter["body"]["run_id"] for letter in await dead_letters(link, config)] == [run.run_id]

        async def has_gone() -> bool:
            state = await consumer_state(link, config)
            return state["num_ack_pending"] == 0 and await jobs_left(link, config) == []

        await eventually(has_gone)
