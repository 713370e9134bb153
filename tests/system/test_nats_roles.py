"""Gateway, worker, keeper and door, each as a user of its own with the rights that `nats-permissions` prints: all of it
works, and what a role has no business with is refused by NATS."""

from __future__ import annotations

import asyncio
import itertools
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyoco_server.core.api_key import read_key
from pyoco_server.errors import Corrupt
from pyoco_server.grid_client import GridClient, JobRequest
from pyoco_server.ports.nats.access import access_of
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.link import NotPermitted, Rejected, open_link
from support.guarded_nats import GuardedSite, RoleProcess, guarded_site
from support.stacks import until
from support.waiting import eventually
from support.wheels import build_wheel

_PEPPER = {"PYOCO_AUTH_PEPPER": "of this test", "PYOCO_HTTP_AUTH_MODE": "api_key"}
_SAMPLES = Path(__file__).parents[2] / "src" / "pyoco_server" / "executors" / "program" / "samples"
_YAML = """\
version: 1
tasks:
  tell: {use: my-tasks/tell}
flow:
  graph: |
    tell
"""
_TASKS = """
def tell():
    return "of a wheel"

def register(registry):
    registry.register_callable(tell, name="my-tasks/tell")
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedSite]:
    folder = tmp_path_factory.mktemp("guarded")
    with guarded_site(folder) as site:
        yield site


class _Caller:
    """Somebody with a key, over HTTP."""

    def __init__(self, gateway: RoleProcess, key: str) -> None:
        port = re.search(r'"port": ?(\d+)', gateway.until_said("serving HTTP").said)
        assert port is not None
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port[1]}", headers={"X-API-Key": key}, timeout=100)

    def ask(self, method: str, path: str, **more: Any) -> Any:
        answer = self.client.request(method, path, **more)
        if method == "GET" and answer.status_code == 503:  # on a busy machine it may not have heard NATS for a while
            answer = until(lambda: (found := self.client.get(path, **more)).status_code != 503 and found, what=path)
        assert answer.status_code in (200, 201, 202), f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.headers["content-type"].startswith("application/json") else answer.content

    def until(self, path: str, *wanted: str, seconds: float = 60.0) -> Any:
        return until(lambda: found if (found := self.ask("GET", path))["status"] in wanted else None, seconds, path)


def test_a_process_that_may_not_make_what_is_missing_says_so_and_ends(tmp_path: Path) -> None:
    """FLOW-284. Before `prepare`; and no process hangs."""
    with guarded_site(tmp_path) as site:
        keeper = site.start("keeper", "pyoco-keeper", name="too-early")
        assert keeper.ended() != 0
        assert "pyoco-server-admin prepare" in keeper.said
        assert "NATS does not permit this user to publish to $JS.API.STREAM.CREATE." in keeper.said
        assert {user for user, _, _ in site.violations()} == {"keeper"}


@pytest.mark.timeout(600)  # a dozen processes, and all of them on a busy machine
def test_every_role_does_its_work_and_no_right_is_missing(site: GuardedSite) -> None:
    """Flows, cancel, watch, wheels, dead letters, a priced run and programs, over TLS."""
    site.admin("prepare")
    site.common |= _PEPPER
    key = site.admin_json("api-key", "create", "--tenant", "acme")["api_key"]
    before = site.violations()
    gateway = site.start("gateway", "pyoco-server", "gateway", "--port", "0")
    keeper = site.start("keeper", "pyoco-keeper")
    open_door = {"EXEC_GROUP": "side", "EXEC_AUTH": "none"}
    door = site.start("door", "pyoco-grid", "leader", "0", "--open-frames", env=open_door)
    flows = ("--flow-resolver", "support.chaos_flows:resolve", "--slots", "2", "--exec-dir", str(_SAMPLES))
    wheels = ("--wheel-sync", "--wheel-sync-interval-sec", "0.2")
    worker = site.start("worker", "pyoco-worker", *flows, *wheels)
    worker.until_said("taking priced runs")
    keeper.until_said("priced duties started")
    caller = _Caller(gateway, key)
    until(lambda: caller.client.get("/ready").status_code == 200, what="ready")
    plug_in = {"pyoco.tasks": {"my-tasks": "my_tasks:register"}}
    wheel = build_wheel("my-tasks", "1.0", modules={"my_tasks/__init__.py": _TASKS}, entry_points=plug_in)
    caller.ask("POST", "/wheels", files={"wheel": wheel})  # installed while the rest goes on
    _flows(caller, site.folder)
    _programs(caller)
    _over_tcp(site, door)
    _priced(caller, site)
    worker.until_said("the wheels of this worker changed")
    _wheels(caller, *wheel)
    for path in ("/queues", "/workers", "/metrics", "/attention", "/exec/state", "/runs", "/dlq"):
        caller.ask("GET", path)
    caller.client.close()
    _doctor(site)
    site.admin("backup", "--to", "backup")
    for each in (worker, door, keeper, gateway):
        each.process.terminate()
    for each in (worker, door, keeper, gateway):
        assert each.ended() == 0, each.said[-3000:]
        assert "does not permit" not in each.said
    assert site.violations() == before


def _doctor(site: GuardedSite) -> None:
    """As the operator, from whom nothing is hidden."""
    doctor = site.start("admin", "pyoco-server", "doctor")
    doctor.ended()
    assert "connections to NATS use TLS" in doctor.said
    assert "NATS requires a login" in doctor.said
    assert "gave no answer" not in doctor.said
    assert "cannot be read" not in doctor.said


def _flows(caller: _Caller, folder: Path) -> None:
    params = {"path": str(folder / "trace.txt"), "token": "a"}
    headers = {"Idempotency-Key": "the-same"}
    body = {"flow_name": "trace", "params": params}
    first, again = (caller.ask("POST", "/runs", json=body, headers=headers) for _ in range(2))
    assert first["run_id"] == again["run_id"]
    with caller.client.stream("GET", f"/runs/{first['run_id']}/watch") as watched:
        assert "COMPLETED" in "".join(watched.iter_text())
    long = caller.ask("POST", "/runs", json={"flow_name": "trace", "params": params | {"token": "b", "seconds": 600}})
    caller.until(f"/runs/{long['run_id']}", "RUNNING")
    caller.ask("POST", f"/runs/{long['run_id']}/cancel")
    failed = caller.ask("POST", "/runs", json={"flow_name": "fails", "params": params | {"token": "c"}})
    with caller.client.stream("GET", f"/runs/{failed['run_id']}/logs/stream") as followed:
        assert "about to fail" in "".join(followed.iter_text())
    assert b"about to fail" in caller.ask("GET", f"/runs/{failed['run_id']}/logs")
    caller.until(f"/runs/{failed['run_id']}", "FAILED")
    letter = until(lambda: caller.ask("GET", "/dlq")["items"], what="a dead letter")[0]
    caller.ask("POST", f"/dlq/{letter['id']}/redrive")
    nobody = caller.ask("POST", "/runs", json={"flow_name": "trace", "params": params, "tag": "nobody"})
    caller.ask("POST", f"/runs/{nobody['run_id']}/cancel")
    caller.until(f"/runs/{nobody['run_id']}", "CANCELLED")  # by the keeper
    caller.until(f"/runs/{long['run_id']}", "CANCELLED")


def _wheels(caller: _Caller, name: str, content: bytes) -> None:
    files = {"workflow": ("flow.yaml", _YAML.encode(), "application/yaml")}
    run_id = caller.ask("POST", "/runs/yaml", files=files, data={"flow_name": "main"})["run_id"]
    caller.until(f"/runs/{run_id}", "COMPLETED")
    again = caller.ask("POST", f"/runs/{run_id}/rerun", json={})["run_id"]
    caller.until(f"/runs/{again}", "COMPLETED")
    assert caller.ask("GET", f"/wheels/{name}") == content
    caller.ask("DELETE", f"/wheels/{name}")
    assert len(caller.ask("GET", "/wheels/history")) == 2


def _programs(caller: _Caller) -> None:
    caller.ask("PUT", "/exec/clients/http", json={"cap": 3})
    parts: list[Any] = [("exec_name", (None, "calcA")), ("arg", (None, "--n")), ("arg", (None, "3"))]
    big = b"x" * 100_000
    job = caller.ask("POST", "/jobs", files=[*parts, ("file", ("in.txt", big))])
    run_id = job["run_id"]
    assert caller.until(f"/runs/{run_id}", "COMPLETED", "FAILED")["status"] == "COMPLETED"
    assert caller.ask("GET", f"/runs/{run_id}/artifacts")[:2] == b"PK"
    sleeper = caller.ask("POST", "/jobs", files=[("exec_name", (None, "sleepn")), ("arg", (None, "600"))])["run_id"]
    caller.until(f"/runs/{sleeper}", "RUNNING")
    caller.ask("POST", f"/runs/{sleeper}/cancel")
    caller.until(f"/runs/{sleeper}", "CANCELLED")
    failing = caller.ask("POST", "/jobs", files=[("exec_name", (None, "failn"))])["run_id"]
    caller.until(f"/runs/{failing}", "FAILED")
    assert caller.ask("GET", "/exec/events", params={"job_id": job["job_id"]})


def _over_tcp(site: GuardedSite, door: RoleProcess) -> None:
    """A door with a worker of its own, which reaches no NATS."""
    found = re.search(r"READY .*?(\S+):(\d+)\n", door.until_said("READY ").said)
    assert found is not None
    host, port = found[1], int(found[2])
    programs = {"EXEC_DIR": str(_SAMPLES), "WORK_ROOT": str(site.folder / "jobs")}
    worker = site.start("door", "pyoco-grid", "worker", host, str(port), env=programs, name="tcp-worker")

    async def run() -> None:
        async with GridClient(host, port, "studio", desired=2) as client:
            ask = JobRequest(exec_name="calcA", args=("--n", "3"), files={"in.txt": b"x" * 100_000})
            result = await client.run(ask)
            assert result.status == "COMPLETED"

    asyncio.run(run())
    worker.process.terminate()
    assert worker.ended() == 0, worker.said[-3000:]


def _priced(caller: _Caller, site: GuardedSite) -> None:
    site.admin("budget", "credit", "--tenant", "acme", "--usd", "10.0000")
    body = {
        "pack_type": "decision",
        "inputs": {"question": "Ship on Friday?"},
        "reservation": {"max_cost_usd": "0.2500"},
    }
    headers = {"Idempotency-Key": f"key-{uuid.uuid4()}"}
    run_id = caller.ask("POST", "/v1/runs", json=body, headers=headers)["run_id"]
    shown = caller.until(f"/v1/runs/{run_id}", "COMPLETED", "FAILED")
    assert shown["status"] == "COMPLETED"
    assert httpx.get(shown["result"]["presigned_url"], timeout=60).status_code == 200
    caller.ask("POST", "/v1/inputs", params={"name": "note.txt"}, content=b"some text")
    site.admin("budget", "verify")


#: What no role but the operator's may do, and who else may not.
_FORBIDDEN = [
    ("make a stream", "$JS.API.STREAM.CREATE.MINE", "gateway worker keeper door"),
    ("change a stream", "$JS.API.STREAM.UPDATE.KV_pyoco_runs", "gateway worker keeper door"),
    ("delete a stream", "$JS.API.STREAM.DELETE.KV_pyoco_runs", "gateway worker keeper door"),
    ("purge the runs", "$JS.API.STREAM.PURGE.KV_pyoco_runs", "gateway worker keeper door"),
    ("purge the jobs", "$JS.API.STREAM.PURGE.PYOCO_WORK", "gateway worker keeper door"),
    ("purge results", "$JS.API.STREAM.PURGE.OBJ_dpp-results", "gateway worker keeper door"),
    ("purge wheels", "$JS.API.STREAM.PURGE.OBJ_pyoco_wheels", "worker door"),
    ("copy a stream out", "$JS.API.STREAM.SNAPSHOT.KV_pyoco_auth", "gateway worker keeper door"),
    ("read by the short way", "$JS.API.DIRECT.GET.KV_pyoco_auth", "gateway worker keeper door"),
    ("read API keys", "$JS.API.STREAM.MSG.GET.KV_pyoco_auth", "worker"),
    ("count API keys", "$JS.API.STREAM.INFO.KV_pyoco_auth", "worker"),
    ("follow API keys", "$JS.API.CONSUMER.CREATE.KV_pyoco_auth.w1.$KV.pyoco_auth.>", "worker"),
    ("write an API key", "$KV.pyoco_auth.0123", "worker keeper door"),
    ("read the signing secret", "$JS.API.STREAM.MSG.GET.KV_pyoco_secrets", "worker keeper door"),
    ("submit a job", "pyoco.work.default", "worker door"),
    ("set an alarm", "PYOCO_CLOCK.at.run.x", "gateway worker door"),
    ("take a job", "$JS.API.CONSUMER.MSG.NEXT.PYOCO_WORK.pyoco_worker_default", "gateway door"),
    ("remove a job", "$JS.API.STREAM.MSG.DELETE.PYOCO_WORK", "gateway worker door"),
    ("submit a program", "pyoco.exec.g.calcA.c.1", "worker"),
    ("send a priced run", "dpp.runs", "worker door"),
    ("take a priced run", "$JS.API.CONSUMER.MSG.NEXT.DPP_RUNS.x", "gateway keeper door"),
    ("register a wheel", "$O.pyoco_wheels.M.x", "worker keeper door"),
    ("let somebody in", "$KV.pyoco_exec_acl.x", "worker keeper door"),
    ("speak for a door", "$KV.pyoco_exec_doors.x", "gateway worker keeper"),
    ("write a schedule", "$KV.pyoco_schedules.s.x", "worker door"),
    ("read schedules", "$JS.API.STREAM.MSG.GET.KV_pyoco_schedules", "worker door"),
    ("write a receipt", "$KV.pyoco_receipts.x", "worker keeper door"),
    ("see all streams", "$JS.API.STREAM.LIST", "gateway worker keeper door"),
    ("see the account", "$JS.API.INFO", "gateway worker keeper door"),
    ("publish anything else", "somebody.elses", "gateway worker keeper door"),
]


#: Buckets in which a role may write, and none may empty. Runs are not among them: see SECURITY.md.
_KEYED = {
    "gateway": "pyoco_workers pyoco_auth pyoco_receipts pyoco_schedules pyoco_wheel_history pyoco_exec_acl "
    "pyoco_secrets",
    "worker": "pyoco_workers pyoco_exec_slots",
    "keeper": "pyoco_workers pyoco_exec_slots pyoco_schedules",
    "door": "pyoco_workers pyoco_exec_slots pyoco_exec_doors pyoco_exec_routes",
}


async def test_who_may_write_one_key_of_a_bucket_cannot_empty_it(site: GuardedSite) -> None:
    """By a header that has the server remove all that was there before, and that no right speaks of."""
    site.admin("prepare")
    for role, names in _KEYED.items():
        link = await open_link(access_of(site.config(role)), f"tests {role}")
        try:
            for name, how in itertools.product(names.split(), ("all", "sub")):
                with pytest.raises(Rejected, match="rollup not permitted"):
                    await link.store(f"$KV.{name}.x", b"{}", {"Nats-Rollup": how})
        finally:
            await link.close()


#: What nobody may listen to but those whom it is for.
_UNHEARD = ("_INBOX.>", "_INBOX_admin.>", "$KV.pyoco_auth.>", "$JS.>", ">")


@pytest.mark.parametrize("role", ["gateway", "worker", "keeper", "door"])
async def test_what_a_role_has_no_business_with_is_refused_by_nats(site: GuardedSite, role: str) -> None:
    """And whoever asked knows at once: long before an answer would be given up."""
    link = await open_link(access_of(site.config(role)), f"tests {role}")
    try:
        for _, subject, roles in _FORBIDDEN:
            if role in roles.split():
                with pytest.raises(NotPermitted, match=re.escape(subject)):  # who gave up would be told something else
                    await link.ask(subject, b"{}", seconds=100.0)
        for subject in _UNHEARD:
            await link.nc.listen(subject, lambda _: None)
        wanted = {(role, "Subscription", subject) for subject in _UNHEARD}
        await eventually(lambda: wanted <= set(site.violations()))
    finally:
        await link.close()


async def test_an_answer_sent_into_the_bucket_of_keys_opens_nothing(site: GuardedSite) -> None:
    """NATS asks who publishes, and not where an answer is to go: a worker can have one stored where it may not write.
    It can so spoil a record whose key it knows. It cannot choose what is written, and that opens nothing."""
    site.admin("prepare")
    worker, admin = [await open_link(access_of(site.config(role)), role) for role in ("worker", "admin")]
    try:
        await worker.nc.publish("$JS.API.STREAM.INFO.KV_pyoco_runs", b"", "$KV.pyoco_auth.spoilt")
        keys = Bucket(admin, "pyoco_auth")

        async def is_there() -> bool:
            return await keys.get("spoilt") is not None

        await eventually(is_there)
        entry = await keys.get("spoilt")
        assert entry is not None
        assert entry.value is not None
        with pytest.raises(Corrupt):
            read_key(entry.value)
        for act in ("PURGE.KV_pyoco_auth", "DELETE.KV_pyoco_receipts"):  # an answer is no question
            await worker.nc.publish("$JS.API.STREAM.INFO.KV_pyoco_runs", b"", f"$JS.API.STREAM.{act}")
        await worker.api("STREAM.INFO.KV_pyoco_runs", {}, dict[str, Any])
        assert await is_there()
        assert await admin.api("STREAM.INFO.KV_pyoco_receipts", {}, dict[str, Any])
        await keys.delete("spoilt", entry.revision)
    finally:
        await worker.close()
        await admin.close()


async def test_a_message_handed_into_another_stream_takes_no_keys_place_and_empties_no_bucket(
    site: GuardedSite,
) -> None:
    """A worker can have a message of its own, with a header of its own, handed to a subject that it may not write.
    There it is stored under the subject it had, where nobody looks. But an object store takes its
    rollup, and is empty."""
    site.admin("prepare")
    worker, admin = [await open_link(access_of(site.config(role)), role) for role in ("worker", "admin")]
    store, own = "OBJ_pyoco_artifacts", "$O.pyoco_artifacts.C.mine"
    try:
        kept = await Bucket(admin, "pyoco_auth").write("kept", b"{}", 0)
        assert kept is not None
        await admin.store("$O.pyoco_wheels.M.kept", b"{}")

        async def hand(to: str, headers: dict[str, str]) -> None:
            await worker.store(own, b"{}", headers)
            consumer = {"name": "mine", "filter_subject": own, "deliver_policy": "last", "ack_policy": "none"}
            config = consumer | {"mem_storage": True, "inactive_threshold": 60 * 10**9}
            made = {"stream_name": store, "config": config}
            await worker.api(f"CONSUMER.CREATE.{store}.mine.{own}", made, dict[str, Any])
            await worker.nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{store}.mine", b'{"batch":1}', to)

            async def is_handed() -> bool:
                info = await admin.api(f"CONSUMER.INFO.{store}.mine", {}, dict[str, Any])
                return bool(info["num_pending"] == 0)

            await eventually(is_handed)
            await worker.api(f"CONSUMER.DELETE.{store}.mine", {}, dict[str, Any])

        for headers in ({}, {"Nats-Rollup": "all"}):
            await hand("$KV.pyoco_auth.kept", headers)
            entry = await Bucket(admin, "pyoco_auth").get("kept")
            assert entry is not None
            assert entry.revision == kept.revision
        await hand("$O.pyoco_wheels.M.x", {"Nats-Rollup": "all"})

        async def is_gone() -> bool:
            request = {"subjects_filter": "$O.pyoco_wheels.M.kept"}
            info = await admin.api("STREAM.INFO.OBJ_pyoco_wheels", request, dict[str, Any])
            return not info["state"].get("subjects")

        await eventually(is_gone)
    finally:
        for stream in (store, "OBJ_pyoco_wheels", "KV_pyoco_auth"):
            await admin.api(f"STREAM.PURGE.{stream}", {}, dict[str, Any])
        await worker.close()
        await admin.close()
