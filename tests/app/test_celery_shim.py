"""The shape of Celery, on a gateway and a worker in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pyoco_server import PyocoError, RunFailed
from pyoco_server.app.clients import Clients
from pyoco_server.app.failures import RequestFailed
from pyoco_server.app.submitting import Submitter
from pyoco_server.compat import celery
from pyoco_server.compat.celery import AsyncResult, Celery, chain, chord, exceptions, group, schedules, signature
from pyoco_server.compat.celery.sending import Sending
from pyoco_server.executors.flow.served import load_app, offers_of
from support import celery_project as shop
from support.celery_project import Flaky, add, app, total
from support.memory_nats import new_memory_url
from support.sites import Site, open_site

SECONDS = 100.0


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with open_site(new_memory_url(), tmp_path_factory.mktemp("site"), resolve=app.resolve) as site:
        yield site


@pytest.fixture
def site(shared_site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    clients = Clients(shared_site.url, None)
    monkeypatch.setattr(app.app, "submitter", Submitter(app.app, clients))
    monkeypatch.setattr("pyoco_server.compat.celery.app._made", [app])
    for event in (shop.held, shop.let_go):
        event.clear()
    shop.seen.clear()
    shared_site.wake()
    yield shared_site
    shop.let_go.set()
    shared_site.rest()
    clients.close()


def until(is_so: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < ends_at
        threading.Event().wait(0.01)


class TestTasks:
    def test_a_task_is_a_flow_and_a_function(self, site: Site) -> None:
        """APP-18, APP-19"""
        result = add.delay(2, y=3)
        assert (result.get(timeout=SECONDS), result.get(), result.state) == (5, 5, "SUCCESS")
        assert (result.ready(), result.successful(), result.failed(), result.traceback) == (True, True, False, None)
        assert AsyncResult(result.id) == result
        assert app.AsyncResult(result.id).get() == 5
        with site.client() as client:
            snapshot = client.get_run(result.id)
        assert (snapshot["flow_name"], snapshot["params"]) == ("support.celery_project.add", {"x": 2, "y": 3})
        assert add(2) == 3
        at = datetime(2026, 5, 6, 7, tzinfo=UTC)
        assert signature("shop.day").delay(at).get(SECONDS) == at.replace(hour=0)

    def test_arguments_are_checked_before_anything_is_sent(self) -> None:
        """APP-18"""
        wrong_calls: list[Callable[[], object]] = [add.delay, lambda: add.delay(1, z=2), chain(add.s(1), add.s(2, 3))]
        for wrong in wrong_calls:
            with pytest.raises(TypeError):
                wrong()

    def test_a_failure_is_the_exception_of_the_task(self, site: Site) -> None:
        """APP-18"""
        result = shop.fails.delay()
        with pytest.raises(Flaky, match="at once") as raised:
            result.get(timeout=SECONDS)
        assert isinstance(raised.value.__cause__, RunFailed)
        assert isinstance(result.get(propagate=False), Flaky)
        assert (result.state, result.failed(), result.successful()) == ("FAILURE", True, False)
        assert "raise Flaky" in str(result.traceback)

    def test_queue_and_id_and_time_are_those_of_the_submission(self, site: Site) -> None:
        """APP-18, APP-19: found by its id from elsewhere, and accepted once."""
        result = add.apply_async((1,), {"y": 5}, task_id="order-17", countdown=3600, queue="elsewhere")
        again = add.apply_async((1,), {"y": 5}, task_id="order-17", countdown=3600, queue="elsewhere")
        assert result.id == again.id == "order-17"
        with site.client() as client:
            (item,) = client.list_runs_vnext(tag="task_id:order-17")["items"]
        assert item["tag"] == "elsewhere"
        assert (AsyncResult("order-17").state, result.ready()) == ("PENDING", False)
        result.revoke()
        assert again.state == "PENDING"  # nobody serves its queue
        site.rest()
        later = add.delay(1)
        later.revoke()
        site.wake()
        with pytest.raises(exceptions.TaskRevokedError):
            later.get(SECONDS)
        assert isinstance(later.get(propagate=False), exceptions.TaskRevokedError)
        assert later.state == "REVOKED"
        with pytest.raises(RequestFailed, match="ERR-PYOCO-0005"):
            _ = AsyncResult("order-18").state

    def test_an_instant_is_in_the_zone_of_the_app(self) -> None:
        """APP-18"""
        day = datetime(2026, 5, 6, 7)  # noqa: DTZ001  (as programs write it)
        told = Sending(eta=day).options("Asia/Tokyo", "own")
        assert told == {"tag": "own", "not_before": datetime(2026, 5, 5, 22, tzinfo=UTC).timestamp()}
        assert Sending(eta=day.replace(tzinfo=UTC), queue="a").options("Asia/Tokyo", None) == {
            "tag": "a",
            "not_before": datetime(2026, 5, 6, 7, tzinfo=UTC).timestamp(),
        }
        assert Sending(countdown=-1).options("UTC", None) == {"tag": None, "delay": 0.0}
        with pytest.raises(ValueError, match="not both"):
            Sending(countdown=1, eta=day).options("UTC", None)

    def test_revoke_lets_what_runs_end_unless_it_is_to_terminate(self, site: Site) -> None:
        """APP-18"""
        result = shop.holds.delay()
        assert shop.held.wait(SECONDS)
        until(lambda: result.state == "STARTED")
        with pytest.raises(exceptions.TimeoutError):
            result.get(timeout=0)
        result.revoke()
        shop.let_go.set()
        assert result.get(SECONDS) is None


class TestRetries:
    def test_a_task_retries_itself(self, site: Site) -> None:
        """APP-18, APP-19: two retries are three tries, and the task knows which one it is."""
        assert shop.asks.delay(2).get(SECONDS) == [2, 2]
        result = shop.asks.delay(9)
        with pytest.raises(Flaky, match="not yet"):
            result.get(SECONDS)
        assert shop.seen == [0, 1, 2] * 2
        with site.client() as client:
            record = client.get_run(result.id, ["records"])["task_records"]["asks"]
        assert [entry["kind"].rpartition(".")[2] for entry in record["tries"]] == ["Retry", "Retry", "Flaky"]

    def test_named_exceptions_are_retried_and_others_are_not(self, site: Site) -> None:
        """APP-19"""
        assert isinstance(shop.flaky.delay().get(SECONDS, propagate=False), Flaky)
        assert shop.seen == ["flaky", "flaky"]
        assert isinstance(shop.calls.delay().get(SECONDS, propagate=False), Flaky)
        assert shop.seen == ["flaky", "flaky", "calls", 0]

    def test_a_task_that_waits_for_its_next_try_is_seen(self, site: Site) -> None:
        """APP-19"""
        result = shop.waits.delay()
        until(lambda: result.state == "RETRY")
        result.revoke(terminate=True)
        with pytest.raises(exceptions.TaskRevokedError):
            result.get(SECONDS)

    def test_outside_of_a_run_there_is_no_other_try(self) -> None:
        """APP-18"""
        with pytest.raises(Flaky):
            shop.asks(1)
        with pytest.raises(exceptions.MaxRetriesExceededError):
            shop.waits()


class TestCanvases:
    @pytest.mark.parametrize(
        ("canvas", "value", "graph"),
        [
            (
                lambda: chain(add.s(1), add.s(5), add.si(10, 20), add.s(y=3)),
                33,
                {"add": [], "add-2": ["add"], "add-3": ["add-2"], "add-4": ["add-3"]},
            ),
            (lambda: group(add.s(number) for number in range(2)), [1, 2], {"group": ["add", "add-2"]}),
            (lambda: chord([add.s(1, 1), add.s(2, 2)], total.s()), 6, {"group": ["add", "add-2"], "total": ["group"]}),
            (lambda: add.s(1, 1) | group(add.s(10), add.s(20) | add.s(5)) | total.s(), 39, {"total": ["group"]}),
        ],
    )
    def test_each_is_one_run(
        self, site: Site, canvas: Callable[[], Any], value: Any, graph: dict[str, list[str]]
    ) -> None:
        """APP-19"""
        made = canvas()
        result = made.apply_async()
        assert result.get(SECONDS) == value
        with site.client() as client:
            snapshot = client.get_run(result.id)
        assert snapshot["flow_name"] == f"shop.tasks.{made.kind}"
        assert graph.items() <= snapshot["graph"].items()

    def test_they_take_more_arguments_when_they_are_called(self, site: Site) -> None:
        """APP-18"""
        runs = [chain(add.s(), add.s(1)).delay(5), group(add.s(), add.s(1))(3), chord([add.s(1)])(total.s())]
        assert [run.get(SECONDS) for run in runs] == [7, [4, 4], 2]
        with pytest.raises(Flaky):
            chain(add.s(1), shop.fails.si(), add.s(1))().get(SECONDS)
        assert chain(shop.asks.s(2), total.s())().get(SECONDS) == 4

    @pytest.mark.parametrize(
        "document",
        [
            None,
            {"chain": []},
            {"task": "unknown", "params": {}, "before": None},
            {"task": "support.celery_project.add", "params": {}, "before": "x"},
            {"task": "support.celery_project.add", "params": {"z": 1}, "before": None},
            {"task": "support.celery_project.add", "params": {"x": "1"}, "before": None},
        ],
    )
    def test_what_other_clients_send_is_checked(self, site: Site, document: Any) -> None:
        """APP-19"""
        run_id = site.ended("shop.tasks.chain", params={"canvas": document})
        with site.client() as client:
            assert client.get_run(run_id)["reason"] == "invalid_job"

    def test_what_is_no_canvas_is_refused(self) -> None:
        """APP-18"""
        with pytest.raises(TypeError, match="takes signatures"):
            chain(add.s(1), 5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="no tasks"):
            group([])
        with pytest.raises(TypeError, match="no callback"):
            chord([add.s(1)])()
        assert add.s(1)(2) == 3


class TestBeat:
    def test_an_entry_is_a_flow_with_a_schedule(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        """APP-19"""
        monkeypatch.setitem(
            app.conf.__dict__,
            "beat_schedule",
            {
                "add at six": {
                    "task": "support.celery_project.add",
                    "schedule": schedules.crontab(hour=6, minute=[0, 30], day_of_week="mon-fri"),
                    "args": (1,),
                    "kwargs": {"y": 41},
                    "options": {"queue": "nightly"},
                },
                "often": {"task": "support.celery_project.add", "schedule": timedelta(minutes=1), "args": (1,)},
            },
        )
        offered = {flow.name: flow for flow in offers_of(load_app("support.celery_project:app"))}
        assert offered["add-at-six"].schedule == {"when": {"cron": "0,30 6 * * mon-fri"}, "timezone": "UTC"}
        assert offered["add-at-six"].tags == ("nightly",)
        assert offered["often"].schedule == {"when": {"every": 60.0}, "timezone": "UTC"}
        assert {"shop.day", "shop.tasks.chain", "support.celery_project.add"} <= offered.keys()
        assert app.app.run(site.ended("add-at-six")).result() == 42

    @pytest.mark.parametrize(
        ("entry", "error"),
        [
            ({"task": "unknown", "schedule": 60}, ValueError),
            ({"task": "own.noop", "schedule": 1.5}, ValueError),
            ({"task": "own.noop", "schedule": 60, "args": (1,)}, TypeError),
            ({"task": "own.noop", "schedule": 60, "relative": True}, NotImplementedError),
            ({"task": "own.noop", "schedule": 60, "options": {"expires": 5}}, NotImplementedError),
            ({"task": "own.noop", "schedule": "daily"}, NotImplementedError),
        ],
    )
    def test_a_bad_entry_stops_the_worker(self, entry: dict[str, Any], error: type[Exception]) -> None:
        """APP-20"""
        own = Celery("own")
        own.task(name="own.noop")(lambda: None)
        own.conf.beat_schedule = {"each": entry}
        with pytest.raises(error):
            own.offered()


def refused(names: str, use: Callable[[], Any]) -> Any:
    return pytest.param(names, use, id=names)


@pytest.mark.parametrize(
    ("name", "use"),
    [
        refused("Celery.broker", lambda: Celery("a", broker="redis://x")),
        refused("Celery.backend", lambda: Celery("a", backend="redis://x")),
        refused("Celery.autodiscover_tasks", lambda: app.autodiscover_tasks(["shop"])),
        refused("Celery.control", lambda: app.control),
        refused("conf.task_routes", lambda: app.conf.update(task_routes={})),
        refused("conf.result_backend", lambda: setattr(app.conf, "result_backend", "redis://x")),
        refused("task.soft_time_limit", lambda: app.task(soft_time_limit=5)),
        refused("task.max_retries=None", lambda: app.task(max_retries=None)),
        refused("parameter *args of task x", lambda: app.task(name="x")(lambda *args: args)),
        refused("apply_async.expires", lambda: add.apply_async((1,), expires=5)),
        refused("apply_async.link", lambda: chain(add.s(1)).apply_async(link=add.s(1))),
        refused("apply_async.priority", lambda: add.s(1).apply_async(priority=None)),
        refused("retry.max_retries", lambda: shop.waits.retry(max_retries=5)),
        refused("request.delivery_info", lambda: shop.waits.request.delivery_info),
        refused("Task.map", lambda: add.map([1, 2])),
        refused("Task.update_state", lambda: add.update_state(state="HALF")),
        refused("Signature.set", lambda: add.s(1).set(queue="a")),
        refused("Signature.map", lambda: group(add.s(1)).map([1])),
        refused("AsyncResult.children", lambda: AsyncResult("a", app=app).children),
        refused("AsyncResult.join", lambda: AsyncResult("a", app=app).join()),
        refused("get.on_message", lambda: AsyncResult("a", app=app).get(on_message=print)),
        refused("revoke.signal", lambda: AsyncResult("a", app=app).revoke(signal="SIGKILL")),
        refused("signals", lambda: celery.signals),
        refused("shared_task", lambda: celery.shared_task),
        refused("Ignore", lambda: exceptions.Ignore),
        refused("solar", lambda: schedules.solar),
        refused("crontab.nowfun", lambda: schedules.crontab(nowfun=print)),
        refused("day_of_week together with day_of_month", lambda: schedules.crontab(day_of_week=1, day_of_month=1)),
    ],
)
def test_everything_else_is_refused_and_never_ignored(name: str, use: Callable[[], Any]) -> None:
    """APP-20"""
    with pytest.raises(NotImplementedError) as raised:
        use()
    assert isinstance(raised.value, PyocoError)
    assert str(raised.value).startswith(f"ERR-PYOCO-0073: {name} of Celery is not offered; instead: ")


def test_a_name_that_cannot_be_one_is_said() -> None:
    """APP-18"""
    assert Celery("shop.tasks").name == "shop-tasks"
    with pytest.raises(ValueError, match="IANA"):
        app.conf.timezone = "Mars/Olympus"
    with pytest.raises(ValueError, match="rename parameter 'ctx'"):
        app.task(lambda ctx: ctx)
    with pytest.raises(KeyError):
        signature("unknown", app=app)
    assert dir(celery) == ["AsyncResult", "Celery", "chain", "chord", "group", "signature"]
    assert not hasattr(celery, "__wrapped__")
