"""`/flows`, and what becomes of submissions whose flow nobody offers (APP-11, APP-12)."""

from __future__ import annotations

import time
from typing import Any

from contracts.registry import a_worker
from pyoco_server.core.offered_flow import OfferedFlow
from pyoco_server.core.outcome import Failed
from pyoco_server.core.worker_record import stopped
from pyoco_server.ports.nats.link import Link
from support.gateways import PROGRESS, Gateway, ended, error, stock_of, submit, submit_yaml

SCHEMA = {
    "type": "object",
    "properties": {"url": {"type": "string"}, "size": {"type": "integer", "default": 3, "enum": [3, 5]}},
    "required": ["url"],
    "additionalProperties": False,
}
MEASURE = OfferedFlow(name="measure", app="reports", doc="Measure a page.", params=SCHEMA, timeout=30.0, tool=True)
REPORT = OfferedFlow(name="report", app="reports", doc="Write it down.", params=SCHEMA)
SCHEDULE: dict[str, Any] = {
    "name": "nightly",
    "what": {"kind": "flow", "flow_name": "measure", "tag": "gpu"},
    "when": {"every": "1h"},
}


#: How far the clocks of workers are ahead: they stay alive however long a test takes.
AHEAD = 3600.0


async def serve(
    gateway: Gateway, worker_id: str, *flows: OfferedFlow, complete: bool = True, age: float = -AHEAD
) -> None:
    """A live worker for the tag `gpu`."""
    seen = time.time() - age
    record = a_worker(worker_id, tags=("gpu",), flows=flows, flows_complete=complete, last_seen_at=seen)
    await gateway.backend.registry.announce(record)


def check_unknown(answer: Any, loc: list[str], nearest: str = "measure") -> None:
    assert answer.status_code == 422, answer.text
    body = answer.json()
    assert {name: body[name] for name in error(6, "flow not found")} == error(6, "flow not found")
    (problem,) = body["errors"]
    assert (problem["loc"], problem["type"]) == (loc, "unknown_flow")
    assert problem["msg"].endswith(f"did you mean {nearest}?")


class TestTheList:
    async def test_shows_each_flow_of_live_workers_with_its_signature(self, gateway: Gateway) -> None:
        """APP-11"""
        await serve(gateway, "w2", MEASURE, REPORT)
        await serve(gateway, "w1", MEASURE)
        await serve(gateway, "gone", OfferedFlow(name="old", app="reports"), age=1000.0)
        answer = await gateway.client.get("/flows")
        assert (answer.status_code, answer.json()["next_cursor"]) == (200, None)
        measure, report = answer.json()["items"]
        assert measure == MEASURE.document() | {"tag": "gpu", "workers": ["w1", "w2"], "conflict": False}
        assert (report["name"], report["workers"]) == ("report", ["w2"])
        assert (await gateway.client.get("/flows/measure")).json() == measure

    async def test_comes_in_pages_that_belong_to_their_filters(self, gateway: Gateway) -> None:
        """APP-11, section 0"""
        await serve(gateway, "w", *(OfferedFlow(name=f"f{n}", app="reports") for n in range(5)))
        names: list[str] = []
        query: dict[str, Any] = {"tag": "gpu", "q": "REPORTS f", "limit": 2}
        while True:
            page = (await gateway.client.get("/flows", params=query)).json()
            names += [each["name"] for each in page["items"]]
            if page["next_cursor"] is None:
                break
            query["cursor"] = page["next_cursor"]
        assert names == ["f0", "f1", "f2", "f3", "f4"]
        other = await gateway.client.get("/flows", params=query | {"q": "f"})
        assert (other.status_code, other.json()["errors"][0]["loc"]) == (422, ["query", "cursor"])

    async def test_bad_queries_and_unknown_flows_are_refused(self, gateway: Gateway) -> None:
        """APP-11"""
        await serve(gateway, "w", MEASURE)
        for query in ("?q=", f"?q={'x' * 201}", "?limit=0", "?limit=201", "?tag=a/b", "?tool=true"):
            assert (await gateway.client.get(f"/flows{query}")).status_code == 422, query
        missing = await gateway.client.get("/flows/nothing%2Fhere")
        assert (missing.status_code, missing.json()) == (404, error(6, "flow not found"))

    async def test_a_flow_whose_name_has_a_slash_can_be_read(self, gateway: Gateway) -> None:
        await serve(gateway, "w", OfferedFlow(name="a/b", app="reports"))
        for path in ("/flows/a/b", "/flows/a%2Fb"):
            assert (await gateway.client.get(path)).json()["name"] == "a/b"

    async def test_a_worker_shows_what_it_announces(self, gateway: Gateway) -> None:
        """APP-10"""
        await serve(gateway, "w", MEASURE, REPORT)
        shown = (await gateway.client.get("/workers/w")).json()
        assert (shown["flows"], shown["flows_complete"]) == (["measure", "report"], True)
        (listed,) = (await gateway.client.get("/workers")).json()
        assert (listed["flows_complete"], "flows" in listed) == (True, False)
        record = await gateway.backend.registry.find("w")
        assert record is not None
        await gateway.backend.registry.retire(stopped(record, "sigterm", time.time()))
        assert (await gateway.client.get("/flows")).json()["items"] == []


class TestSubmissions:
    async def test_of_a_flow_that_no_worker_of_the_tag_has_are_refused_and_leave_nothing(
        self, gateway: Gateway, link: Link
    ) -> None:
        """APP-12: 422 with the nearest name, over every route that submits by name"""
        await serve(gateway, "w", MEASURE)
        before = await stock_of(gateway.config, link)
        asked = {"flow_name": "mesure", "tag": "gpu"}
        check_unknown(await gateway.client.post("/runs", json=asked), ["body", "flow_name"])
        keyed = await gateway.client.post("/runs", json=asked, headers={"Idempotency-Key": "k"})
        check_unknown(keyed, ["body", "flow_name"])
        schedule = SCHEDULE | {"what": {"kind": "flow", "flow_name": "mesure", "tag": "gpu"}}
        for sent in (
            gateway.client.post("/schedules", json=schedule, headers={"Idempotency-Key": "s"}),
            gateway.client.put("/schedules/nightly", json=schedule),
        ):
            check_unknown(await sent, ["body", "what", "flow_name"])
        batch = await gateway.client.post("/runs/batch", json={"runs": [asked]})
        assert (batch.json()["refused"], batch.json()["items"][0]["error"]["err_id"]) == (1, "ERR-PYOCO-0006")
        assert await stock_of(gateway.config, link) == before

    async def test_of_an_announced_flow_a_file_or_another_tag_are_accepted(self, gateway: Gateway) -> None:
        """APP-12: params are left to the worker; a tag without workers waits for one."""
        await serve(gateway, "w", MEASURE)
        accepted = await gateway.client.post("/runs", json={"flow_name": "measure", "tag": "gpu", "params": {"no": 1}})
        assert (accepted.status_code, accepted.json().keys()) == (200, {"run_id", "status"})
        assert (await submit_yaml(gateway, tag="gpu")).status_code == 200
        other = await gateway.client.post("/runs", json={"flow_name": "hello", "tag": "cpu"})
        assert (other.status_code, "no live worker announces" in other.json()["warning"]) == (200, True)

    async def test_that_only_a_resolver_may_know_are_accepted_with_a_warning(self, gateway: Gateway) -> None:
        """APP-12"""
        asked = {"flow_name": "hello", "tag": "gpu"}
        await serve(gateway, "resolver", complete=False)
        assert "warning" not in (await gateway.client.post("/runs", json=asked)).json()
        await serve(gateway, "app", MEASURE)
        accepted = (await gateway.client.post("/runs", json=asked)).json()
        assert "no live worker with the tag gpu announces a flow hello" in accepted["warning"]
        batch = (await gateway.client.post("/runs/batch", json={"runs": [asked]})).json()
        assert batch["items"][0]["warning"] == accepted["warning"]
        again = await gateway.client.post(f"/runs/{accepted['run_id']}/rerun")
        assert again.json()["warning"] == accepted["warning"]
        what = {"kind": "flow", "flow_name": "hello", "tag": "gpu"}
        made = await gateway.client.post("/schedules", json=SCHEDULE | {"what": what})
        assert (made.status_code, made.json()["warning"]) == (201, accepted["warning"])
        assert "warning" not in (await gateway.client.get("/schedules/nightly")).json()

    async def test_that_were_accepted_under_a_key_are_not_refused_later(self, gateway: Gateway) -> None:
        """APP-12: the same key gets the first answer, whatever is offered by then."""
        asked, key = {"flow_name": "hello", "tag": "gpu"}, {"Idempotency-Key": "k"}
        first = await gateway.client.post("/runs", json=asked, headers=key)
        await serve(gateway, "app", MEASURE)
        again = await gateway.client.post("/runs", json=asked, headers=key)
        assert (again.status_code, again.json(), again.headers["idempotency-replayed"]) == (200, first.json(), "true")
        other = await gateway.client.post("/runs", json=asked | {"params": {"n": 1}}, headers=key)
        assert (other.status_code, other.json()["err_id"]) == (409, "ERR-PYOCO-0026")

    async def test_that_repeat_a_run_are_checked_again(self, gateway: Gateway) -> None:
        """APP-12"""
        run_id = await submit(gateway, flow_name="mesure", tag="gpu")
        await ended(gateway, run_id, Failed(progress=PROGRESS, message="flow not found"))
        await serve(gateway, "app", MEASURE)
        check_unknown(await gateway.client.post(f"/runs/{run_id}/rerun"), ["body", "flow_name"])
        elsewhere = await gateway.client.post(f"/runs/{run_id}/rerun", json={"tag": "cpu"})
        assert elsewhere.status_code == 200


async def test_a_schedule_whose_flow_is_gone_can_still_be_changed(gateway: Gateway) -> None:
    """APP-12: only a flow or a tag that is new in it is checked."""
    assert (await gateway.client.post("/schedules", json=SCHEDULE)).status_code == 201
    await serve(gateway, "app", REPORT)
    put: dict[str, Any] = {"json": SCHEDULE | {"paused": True}, "headers": {"If-Match": "*"}}
    assert (await gateway.client.put("/schedules/nightly", **put)).status_code == 200
    put["json"] = SCHEDULE | {"what": {"kind": "flow", "flow_name": "reprot", "tag": "gpu"}}
    check_unknown(await gateway.client.put("/schedules/nightly", **put), ["body", "what", "flow_name"], "report")
    assert (await gateway.client.get("/schedules/nightly")).json()["what"]["flow_name"] == "measure"
