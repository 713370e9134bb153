"""`POST /runs/{run_id}/cancel`: the first request counts, and an end stays an end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pyoco.core.models import Flow

from pyoco_server.core.outcome import Completed, Failed
from pyoco_server.worker import PyocoNatsWorker
from support import naughty
from support.gateways import (
    PROGRESS,
    Gateway,
    claimed,
    ended,
    ids,
    stored,
    submit,
)
from support.waiting import eventually


async def read(gateway: Gateway, run_id: str) -> dict[str, Any]:
    """The record itself: the reason why it waits is added if it is known."""
    found: dict[str, Any] = (await gateway.client.get(f"/runs/{run_id}")).json()
    found.pop("waiting", None)
    return found


class TestCancel:
    async def test_a_run_is_asked_to_stop(self, gateway: Gateway) -> None:
        """FLOW-114, FLOW-115, FLOW-175, FLOW-343"""
        cases: list[tuple[bytes, str | None]] = [
            (b"", None),
            (b" \n", None),
            (b"{}", None),
            (b'{"reason": "a typo in the input"}', "a typo in the input"),
            (b'{"reason": ""}', ""),
            ('{"reason": "理由"}'.encode(), "理由"),
        ]
        for body, reason in cases:
            run_id = await submit(gateway)
            before = await read(gateway, run_id)
            answer = await gateway.client.post(f"/runs/{run_id}/cancel", content=body)
            assert answer.status_code == 200, body
            asked = answer.json()
            assert asked["cancel_requested_at"] == asked["updated_at"] >= before["updated_at"], body
            changed = {
                "status": "CANCELLING",
                "cancel_requested_at": asked["updated_at"],
                "cancel_deadline_at": asked["updated_at"] + gateway.config.cancel_grace_period_sec,
                "updated_at": asked["updated_at"],
                "last_change": {
                    "what": "cancel_requested",
                    "at": asked["updated_at"],
                    "by": {"kind": "caller", "id": None},
                },
            }
            assert asked == before | changed | ({} if reason is None else {"cancel_reason": reason}), body
            assert await read(gateway, run_id) == asked, body

    async def test_a_running_run_is_asked_to_stop(self, gateway: Gateway) -> None:
        """FLOW-16"""
        run_id = await submit(gateway)
        await claimed(gateway, run_id)
        asked = (await gateway.client.post(f"/runs/{run_id}/cancel")).json()
        assert (asked["status"], asked["worker_id"], asked["attempt"]) == ("CANCELLING", "anna", 1)
        assert "task_records" not in asked

    async def test_the_first_request_counts(self, gateway: Gateway) -> None:
        """FLOW-177"""
        run_id = await submit(gateway)
        path = f"/runs/{run_id}/cancel"
        first = await gateway.client.post(path, json={"reason": "first"})
        revision = (await stored(gateway, run_id)).revision
        second = await gateway.client.post(path, json={"reason": "second"})
        assert (second.status_code, second.json()) == (200, first.json())
        assert (await stored(gateway, run_id)).revision == revision

    async def test_a_later_request_may_only_shorten_the_time_to_stop(self, gateway: Gateway) -> None:
        """CLI-10"""
        run_id = await submit(gateway)

        async def left(**body: Any) -> float:
            asked = (await gateway.client.post(f"/runs/{run_id}/cancel", json=body)).json()
            return float(asked["cancel_deadline_at"] - asked["cancel_requested_at"])

        assert await left(grace_sec=3600) == pytest.approx(3600)
        assert await left() == pytest.approx(3600)
        shortened = await left(grace_sec=100)
        assert 100 <= shortened < 3600
        assert await left(grace_sec=200) == shortened
        assert await left(grace_sec=0) < 100
        run = await read(gateway, run_id)
        assert run["last_change"]["at"] == run["cancel_requested_at"]

    @pytest.mark.parametrize("grace", [-1, 3601, "30", None, True])
    async def test_a_bad_time_to_stop_is_refused(self, gateway: Gateway, grace: object) -> None:
        """CLI-10"""
        run_id = await submit(gateway)
        answer = await gateway.client.post(f"/runs/{run_id}/cancel", json={"grace_sec": grace})
        if grace is None:
            assert answer.status_code == 200
        else:
            assert (answer.status_code, answer.json()["errors"][0]["loc"]) == (422, ["body", "grace_sec"])
            assert (await read(gateway, run_id))["status"] == "PENDING"

    @pytest.mark.parametrize("outcome", [Completed(progress=PROGRESS), Failed(message="it broke", progress=PROGRESS)])
    async def test_a_run_that_has_ended_stays_as_it_is(self, gateway: Gateway, outcome: Completed | Failed) -> None:
        """FLOW-19, FLOW-114, FLOW-176"""
        run_id = await submit(gateway)
        await ended(gateway, run_id, outcome)
        before = await stored(gateway, run_id)
        answer = await gateway.client.post(f"/runs/{run_id}/cancel", json={"reason": "late"})
        assert answer.status_code == 200
        assert answer.json()["status"] == before.run.status
        assert not {"task_records", "cancel_requested_at", "cancel_reason"} & answer.json().keys()
        assert await stored(gateway, run_id) == before

    async def test_of_many_requests_at_once_one_counts(self, gateway: Gateway) -> None:
        """FLOW-177, FLOW-178"""
        run_id = await submit(gateway)
        revision = (await stored(gateway, run_id)).revision
        path = f"/runs/{run_id}/cancel"
        answers = await asyncio.gather(*(gateway.client.post(path, json={"reason": str(n)}) for n in range(20)))
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.content for answer in answers}) == 1
        assert (await stored(gateway, run_id)).revision == revision + 1

    async def test_a_cancelled_run_shows_in_the_list(self, gateway: Gateway) -> None:
        run_id = await submit(gateway)
        await gateway.client.post(f"/runs/{run_id}/cancel")

        async def is_listed() -> bool:
            return await ids(gateway, status="CANCELLING") == [run_id]

        await eventually(is_listed)


class TestWithAWorker:
    """FLOW-559: from the door to the worker and back."""

    async def test_a_running_run_is_cancelled_and_stays_so(self, gateway: Gateway) -> None:
        worker = await PyocoNatsWorker.connect(gateway.config, naughty.resolve)
        run_id = await submit(gateway, flow_name="watches_for_a_cancel", params={"seconds": 20})
        working = asyncio.create_task(worker.run_once(5))
        path = f"/runs/{run_id}"

        async def status() -> str:
            return str((await gateway.client.get(path)).json()["status"])

        async def runs() -> bool:
            tasks = (await gateway.client.get(path)).json()["tasks"]
            return bool(tasks.get("watches_for_a_cancel") == "RUNNING")

        await eventually(runs)
        asked = await gateway.client.post(f"{path}/cancel", json={"reason": "enough"})
        assert (asked.status_code, asked.json()["status"]) == (200, "CANCELLING")
        assert await working == run_id
        assert await status() == "CANCELLED"
        before = await stored(gateway, run_id)
        again = await gateway.client.post(f"{path}/cancel", json={"reason": "once more"})
        assert (again.status_code, again.json()["status"], again.json()["cancel_reason"]) == (
            200,
            "CANCELLED",
            "enough",
        )
        assert await stored(gateway, run_id) == before
        await worker.close()

    async def test_a_pending_run_never_starts(self, gateway: Gateway) -> None:
        """FLOW-184"""
        run_id = await submit(gateway, flow_name="fine")
        await gateway.client.post(f"/runs/{run_id}/cancel")
        resolved: list[str] = []

        def resolve(name: str) -> Flow:
            resolved.append(name)
            return naughty.resolve(name)

        worker = await PyocoNatsWorker.connect(gateway.config, resolve)
        assert await worker.run_once(5) == run_id
        await worker.close()
        assert resolved == []
        found = (await gateway.client.get(f"/runs/{run_id}")).json()
        assert (found["status"], found["attempt"], found["error"]) == ("CANCELLED", 0, None)
