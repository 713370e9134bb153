"""Nothing is missing, nothing is stale: the clients against the routes and schemas of the gateway, and each other."""

from __future__ import annotations

import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NotRequired, get_origin, get_type_hints

import pytest

from pyoco_server import http_client
from pyoco_server.client import (
    calls,
    job_calls,
    job_results,
    log_results,
    priced_calls,
    priced_results,
    results,
    schedule_calls,
    schedule_results,
)
from pyoco_server.client.calls import Call
from pyoco_server.doors.http.app import OPERATIONS, openapi_schemas
from pyoco_server.http_client import AsyncPyocoHttpClient, PyocoHttpClient

ROOT = Path(__file__).parents[2]

#: A call of each kind.
CALLS: dict[str, Call[Any]] = {
    "health": calls.health(),
    "ready": calls.ready(),
    "get_metrics": calls.get_metrics(),
    "get_recent_metrics": calls.get_recent_metrics(None),
    "list_queues": calls.list_queues(),
    "get_attention": calls.get_attention(),
    "submit_run": calls.submit_run({}, None),
    "submit_run_yaml": calls.submit_run_yaml("", {"flow_name": "f", "tag": "t"}, None),
    "submit_batch": calls.submit_batch([], None),
    "rerun_run": calls.rerun_run("{run_id}", {}, None),
    "start_run": calls.start_run("{run_id}"),
    "get_run": calls.get_run("{run_id}", None),
    "get_tasks": calls.get_tasks("{run_id}"),
    "list_runs": calls.list_runs({}),
    "list_runs_vnext": calls.list_runs_vnext({}),
    "read_run_result": calls.fetch_run_result("{run_id}"),
    "read_task_output": calls.fetch_task_output("{run_id}", "{task}"),
    "cancel_run": calls.cancel_run("{run_id}", None, None),
    "cancel_runs": calls.cancel_runs({}),
    "run_logs": calls.get_run_logs("{run_id}", {}),
    "watch_run": calls.watch_run("{run_id}", {}, None),
    "list_flows": calls.list_flows({}),
    "get_flow": calls.get_flow("{name}"),
    "list_workers": calls.list_workers({}),
    "get_worker": calls.get_worker("{worker_id}"),
    "patch_worker": calls.patch_worker("{worker_id}", True),
    "list_letters": calls.list_letters({}),
    "count_letters": calls.count_letters(),
    "get_letter": calls.get_letter("{letter_id}"),
    "redrive_letter": calls.redrive_letter("{letter_id}", {}),
    "redrive_letters": calls.redrive_letters({}),
    "delete_letter": calls.delete_letter("{letter_id}"),
    "delete_letters": calls.delete_letters({}),
    "list_wheels": calls.list_wheels(),
    "list_wheel_history": calls.list_wheel_history({}),
    "upload_wheel": calls.upload_wheel(calls.wheel_form("x", True, None), None),
    "get_wheel": calls.fetch_wheel("{wheel_name}"),
    "delete_wheel": calls.delete_wheel("{wheel_name}"),
    "submit_job": job_calls.submit_job(job_calls.job_form("x", (), {}, {}), None),
    "get_artifacts": job_calls.get_artifacts("{run_id}"),
    "read_artifact": job_calls.fetch_artifact("{run_id}", "{name}"),
    "requeue_letter": job_calls.requeue_letter("{letter_id}"),
    "exec_state": job_calls.exec_state(None),
    "exec_events": job_calls.exec_events({}),
    "get_client_cap": job_calls.get_client_cap("{client_id}", None),
    "set_client_cap": job_calls.set_client_cap("{client_id}", 1, None),
    "get_acl": job_calls.get_acl("{kind}", "{id}"),
    "set_acl": job_calls.set_acl("{kind}", "{id}", {}),
    "delete_acl": job_calls.delete_acl("{kind}", "{id}"),
    "submit_pack": priced_calls.submit_pack({}, None),
    "list_packs": priced_calls.list_packs(),
    "get_pack_run": priced_calls.get_pack_run("{run_id}"),
    "get_envelope": priced_calls.get_envelope("{run_id}"),
    "upload_input": priced_calls.upload_input(None, None),
    "list_budgets": priced_calls.list_budgets({}),
    "get_budget": priced_calls.get_budget("{tenant_id}"),
    "get_budget_journal": priced_calls.get_budget_journal("{tenant_id}", {}),
    "get_budget_spend": priced_calls.get_budget_spend("{tenant_id}", {}),
    "create_schedule": schedule_calls.create_schedule({}, None),
    "list_schedules": schedule_calls.list_schedules({}),
    "get_schedule": schedule_calls.get_schedule("{name}"),
    "put_schedule": schedule_calls.put_schedule("{name}", {}, None, new=True),
    "delete_schedule": schedule_calls.delete_schedule("{name}", None),
    "pause_schedule": schedule_calls.pause_schedule("{name}", None),
    "resume_schedule": schedule_calls.resume_schedule("{name}"),
    "trigger_schedule": schedule_calls.trigger_schedule("{name}", None, None),
    "backfill_schedule": schedule_calls.backfill_schedule("{name}", {}),
    "preview_schedule": schedule_calls.preview_schedule("{name}", {}),
    "preview_new_schedule": schedule_calls.preview_new_schedule({}, {}),
    "list_schedule_ticks": schedule_calls.list_schedule_ticks("{name}", {}),
    "healthz": priced_calls.healthz(),
    "readyz": priced_calls.readyz(),
}
#: What is more than one call, or another use of one.
MORE = {
    "close",
    "iter_runs",
    "wait_run",
    "download_wheel",
    "save_artifact",
    "save_run_result",
    "wait_pack_run",
    "save_result",
}
#: The other call of a method that has two.
SECOND = {"run_logs": calls.follow_run_logs("{run_id}", {}, None)}
#: What follows an address that an answer has told.
FOLLOWED = {"read_pack_result": ("GET", "/v1/results/{token}")}


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_sync_client", ROOT / "tools" / "make_sync_client.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def public(kind: type) -> dict[str, Any]:
    members = {name: member for part in kind.__mro__[-2::-1] for name, member in vars(part).items()}
    return {name: member for name, member in members.items() if not name.startswith("_")}


def test_the_generated_client_is_not_stale() -> None:
    for path, text in load_generator().twins().items():
        assert path.read_text(encoding="utf-8") == text, f"{path} is stale: run python tools/make_sync_client.py"
        assert text.startswith("# Generated")


def test_both_clients_have_the_same_methods_with_the_same_words() -> None:
    """FLOW-401 to FLOW-414"""
    assert list(public(PyocoHttpClient)) == list(public(AsyncPyocoHttpClient))
    for name, member in public(PyocoHttpClient).items():
        twin = getattr(AsyncPyocoHttpClient, name)
        assert list(inspect.signature(member).parameters) == list(inspect.signature(twin).parameters)
        assert member.__doc__ == twin.__doc__
        assert member.__doc__, name
        assert not inspect.iscoroutinefunction(member)
        assert inspect.iscoroutinefunction(twin) or inspect.isasyncgenfunction(twin), name


def test_the_synchronous_client_knows_no_event_loop() -> None:
    for name in (
        "sync.py",
        "sync_jobs.py",
        "sync_outputs.py",
        "sync_priced.py",
        "sync_schedules.py",
        "sync_wire.py",
        "io_sync.py",
    ):
        text = (ROOT / "src" / "pyoco_server" / "client" / name).read_text()
        assert not re.search(r"\b(async|await|asyncio|Async\w+)\b", text), name


def test_there_is_a_method_for_every_route() -> None:
    asked = {
        (call.method, call.path.replace("%7B", "{").replace("%7D", "}")) for call in (*CALLS.values(), *SECOND.values())
    }
    asked |= set(FOLLOWED.values())
    # The dashboard's page and its files are for browsers, and `/mcp/` is for clients of its own protocol.
    others = {"dashboard", "agents"}
    assert asked == {(each.method, each.path) for each in OPERATIONS if others.isdisjoint(each.tags)}
    assert set(public(PyocoHttpClient)) == set(CALLS) | MORE | set(FOLLOWED)


def test_every_submission_has_a_key_and_no_other_call_has() -> None:
    keyed = {f"{each.method} {each.path}" for each in OPERATIONS if "'Idempotency-Key'" in str(each.parameters)}
    sends = {name for name, call in CALLS.items() if "Idempotency-Key" in call.headers}
    assert sends == {
        "submit_run",
        "submit_run_yaml",
        "submit_batch",
        "rerun_run",
        "submit_pack",
        "create_schedule",
        "trigger_schedule",
    }
    named = {"POST /jobs"}  # by an id in its form
    assert {f"{CALLS[name].method} {CALLS[name].path}" for name in sends} | named == {
        path.replace("{", "%7B").replace("}", "%7D") for path in keyed
    }
    form = b"".join(job_calls.job_form("x", (), {}, {}).pieces()).decode()
    assert re.search('name="job_id"\r\n\r\n[0-9a-f-]{36}\r\n', form)


#: The names that differ: the contract's here, the glossary's there.
SCHEMA_OF = {
    "DlqCounts": "DeadLetterCounts",
    "DlqGroup": "DeadLetterGroup",
    "DlqMessage": "DeadLetter",
    "DlqMessageDeleted": "DeadLetterDeleted",
    "DlqMessageDetail": "DeadLetterDetail",
    "DlqMessageRedriven": "DeadLetterRedriven",
    "DlqMessageRequeued": "DeadLetterRequeued",
    "DlqMessagesDeleted": "DeadLettersDeleted",
    "DlqMessagesRedriven": "DeadLettersRedriven",
    "DlqPage": "DeadLetterPage",
    "DlqProblem": "DeadLetterProblem",
    "ErrorBody": "Error",
    "ExecAclWritten": "ExecAclRequest",
    "PackArtifact": "PricedArtifact",
    "PackEnvelope": "PricedEnvelope",
    "PackImage": "PricedImage",
    "PackInput": "PricedInput",
    "PackList": "PricedPacks",
    "PackOffer": "PricedPack",
    "PackProblemBody": "ProblemDetails",
    "PackProblemPlace": "ProblemAt",
    "PackReceipt": "PricedReceipt",
    "PackRun": "PricedRun",
    "LettersRedrivenBy": "DeadLettersRedriveRequest",
    "RunChange": "RunRerunRequest",
    "RunsCancelledBy": "RunsCancelRequest",
    "WorkerRecord": "Worker",
}
#: `LettersDeletedBy` is a query, `WheelDownloaded` and `PackFile` are of this side, `RunStatus` is a word.
#: `PackCosts` are headers, `RunPackFields` is a part of snapshots, `PackResult` has a test of its own.
OURS = {"LettersDeletedBy", "WheelDownloaded", "PackFile", "RunStatus", "PackCosts", "RunPackFields", "PackResult"}
#: The same of programs: `JobAsked` is a part of a form.
OURS |= {"ArtifactSaved", "JobAsked", "RunProgramFields", "RunsOfPrograms"}
#: The same of logs: filters are a query, a page is the whole body.
OURS |= {"LogFilters", "LogLines", "LogStream"}
#: A summary may be a whole snapshot; an event gets its name from its frame; a receipt tells what its headers said.
MAY_HAVE_MORE = {"RunSummary", "RunWatchEvent", "PackReceipt"}
OF_HEADERS = {"idempotency_key", "replayed", "costs"}
#: Objects within these; and `result`, which is one of two there.
PARTS = {
    "PackCost": ("PricedRun", "cost"),
    "PackFailure": ("PricedFailure", "problem"),
    "PackInline": ("PricedResult", "inline"),
    "PackPoll": ("PricedReceipt", "poll"),
    "PackReceiptMeta": ("PricedReceipt", "meta"),
    "PackReservation": ("PricedReceipt", "reservation"),
    "PackRunMeta": ("PricedRun", "meta"),
}
MODULES = (results, job_results, log_results, priced_results, schedule_results)
TYPES = {name: getattr(module, name) for module in MODULES for name in module.__all__}


def schema_of(name: str) -> dict[str, Any]:
    if name in PARTS:
        whole, member = PARTS[name]
        return dict(openapi_schemas()[whole]["properties"][member])
    return dict(openapi_schemas()[SCHEMA_OF.get(name, name)])


@pytest.mark.parametrize("name", sorted(set(TYPES) - OURS))
def test_a_type_has_the_fields_of_its_schema(name: str) -> None:
    """Section 18.8"""
    kind, schema = TYPES[name], schema_of(name)
    told = get_type_hints(kind, include_extras=True)
    hints, optional = set(told), {word for word, hint in told.items() if get_origin(hint) is NotRequired}
    missing = set(schema["properties"]) - hints
    more = hints - set(schema["properties"])
    assert not missing
    assert not more or name in MAY_HAVE_MORE
    elsewhere = OF_HEADERS | ({"event"} if name == "RunWatchEvent" else set())
    assert set(kind.__required_keys__) - optional - elsewhere == set(schema.get("required", []))


def test_the_result_of_a_pack_is_one_or_the_other() -> None:
    """PRICED-74"""
    either = {*openapi_schemas()["PricedResult"]["properties"], *openapi_schemas()["PricedFailure"]["properties"]}
    assert set(get_type_hints(priced_results.PackResult)) == either


def test_the_public_module_has_what_it_says() -> None:
    assert sorted(http_client.__all__, key=str) == sorted(set(http_client.__all__))
    for name in http_client.__all__:
        assert getattr(http_client, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = http_client.Nonsense


def test_an_address_without_tls_reads_no_certificates() -> None:
    """Reading them takes longer than most calls"""
    program = (
        "import httpx, ssl\n"
        "from pyoco_server.http_client import PyocoHttpClient\n"
        "real = ssl.SSLContext.load_verify_locations\n"
        "loads = []\n"
        "ssl.SSLContext.load_verify_locations = lambda *args, **more: (loads.append(1), real(*args, **more))\n"
        "PyocoHttpClient('http://127.0.0.1:1')\n"
        "print(len(loads))\n"
        "PyocoHttpClient('https://127.0.0.1:1')\n"
        "print(len(loads) > 0)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout.split() == ["0", "True"]
