"""Keeps the schedules that flows of apps declare."""

from __future__ import annotations

from pyoco_server.actions.schedules.keep_app_schedule import KeptAs, keep_app_schedule
from pyoco_server.core.flow_offers import FlowOffer, Wanted, offers_of
from pyoco_server.core.schedules.of_apps import schedule_name
from pyoco_server.errors import InvalidSchedule, PyocoError, TooManySchedules
from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.backend import Backend

__all__ = ["AppSchedules"]

log = get_logger(__name__)

_EVERY_SECONDS = 5.0


class AppSchedules(Loop):
    """Creates and updates the schedules of the flows that live workers announce (APP-13).

    A turn compares what is in memory, and makes no request unless a schedule has to be written. While workers announce
    different schedules, as during a deployment, the announcement that `GET /flows` shows counts. What it cannot do:
    delete the schedule of a flow that has none any more, or is served by no worker; operators decide that.
    """

    def __init__(self, backend: Backend, *, every_seconds: float = _EVERY_SECONDS) -> None:
        super().__init__(every_seconds=every_seconds)
        self._backend = backend
        #: Schedules that could not be kept, which was logged, by name: why.
        self._told: dict[str, str] = {}

    async def turn(self) -> None:
        registry = self._backend.registry
        await registry.start()
        now, config = self._backend.clock(), self._backend.config
        live = [each for each in registry.known() if each.is_alive(now, config.worker_disconnect_timeout_sec)]
        for offer in offers_of(live, Wanted(), config.default_tag):
            if offer.flow.schedule is not None:
                await self._keep(offer)

    async def _keep(self, offer: FlowOffer) -> None:
        name = schedule_name(offer)
        try:
            kept = await keep_app_schedule(self._backend, offer)
        except (InvalidSchedule, TooManySchedules) as error:
            self._tell(name, "the schedule of a flow cannot be stored", error)
            return
        except PyocoError as error:  # one bad schedule must not stop the others
            self.outage.failed("could not keep the schedule of a flow; retrying", error, schedule=name)
            return
        if kept is KeptAs.LEFT:
            self._tell(name, "the schedule of a flow was changed by hand; left as it is", None)
            return
        self._told.pop(name, None)
        if kept is not KeptAs.UNCHANGED:
            log.info("wrote the schedule of a flow", schedule=name, flow=offer.flow.name, outcome=kept.value)

    def _tell(self, name: str, text: str, error: PyocoError | None) -> None:
        """Log it once, and again only if the reason changes."""
        if self._told.get(name) != f"{text} {error}":
            self._told[name] = f"{text} {error}"
            log.warning(text, schedule=name, **({} if error is None else {"error": error}))

    async def stop(self) -> None:
        await super().stop()
        await self._backend.registry.stop()
