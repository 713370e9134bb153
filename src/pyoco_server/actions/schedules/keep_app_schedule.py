"""Create or update the schedule that a flow of an app declares."""

from __future__ import annotations

from enum import Enum

from pyoco_server.actions.schedules.reach import scheduling_of
from pyoco_server.actions.schedules.write import add_schedule, replace_schedule
from pyoco_server.core.flow_offers import FlowOffer
from pyoco_server.core.rounds import Rounds
from pyoco_server.core.run import Caller
from pyoco_server.core.schedules import progress
from pyoco_server.core.schedules.ids import schedule_key
from pyoco_server.core.schedules.of_apps import app_label, declared_schedule, redefined
from pyoco_server.core.schedules.record import Schedule
from pyoco_server.errors import ScheduleNameTaken
from pyoco_server.ports.backend import Backend

__all__ = ["KeptAs", "keep_app_schedule"]


class KeptAs(Enum):
    """What became of a declared schedule."""

    UNCHANGED = "unchanged"
    CREATED = "created"
    UPDATED = "updated"
    #: It was last written by somebody else, and stays as it is.
    LEFT = "left"


async def keep_app_schedule(backend: Backend, offer: FlowOffer) -> KeptAs:
    """Make the schedule `app-<app>-<flow>` what the flow declares (APP-13). It belongs to no tenant.

    One that has not the label of the app is left alone; a paused one stays paused. Any number of keepers may do this at
    once, and repeat it: each write is a compare-and-set, and equal content is not written. No round trip then: what
    is in memory is compared. Raises InvalidSchedule, TooManySchedules, Unavailable.
    """
    schedules, declared = scheduling_of(backend).schedules, declared_schedule(offer, backend.clock())
    key = schedule_key(None, declared.name)

    def edit(found: Schedule) -> Schedule:
        return progress.edited(found, redefined(found.definition, declared), found.api_key_id, backend.clock())

    rounds = Rounds(f"the schedule {declared.name}")
    kept = schedules.recall(key)
    while True:
        rounds.begin()
        kept = kept or await schedules.find(key)
        if kept is None:
            try:
                await add_schedule(backend, Caller(), declared, backend.new_id())
            except ScheduleNameTaken:  # a moment ago, perhaps by another keeper
                continue
            return KeptAs.CREATED
        if app_label(offer) not in kept.schedule.definition.labels:
            return KeptAs.LEFT
        if edit(kept.schedule) is kept.schedule:
            return KeptAs.UNCHANGED
        if await replace_schedule(backend, kept, edit) is not None:
            return KeptAs.UPDATED
        kept = None
