"""What every store of placements promises."""

from __future__ import annotations

import asyncio
import uuid
from typing import Protocol

from pyoco_server.ports.routes.port import Routes

__all__ = ["MakeRoutes", "RoutesContract"]


class MakeRoutes(Protocol):
    """Over the test's one store, as another router would open it."""

    def __call__(self) -> Routes: ...


class RoutesContract:
    """An adapter passes all of it or does not ship."""

    async def test_a_job_is_placed_once(self, make_routes: MakeRoutes) -> None:
        """GRID-135"""
        routes, job_id = make_routes(), str(uuid.uuid4())
        assert await routes.find(job_id) is None
        placed = await routes.place(job_id, "g1", 5.0)
        assert (placed.job_id, placed.group, placed.at) == (job_id, "g1", 5.0)
        assert await make_routes().place(job_id, "g2", 6.0) == placed
        assert await make_routes().find(job_id) == placed

    async def test_of_many_routers_all_send_it_to_one_group(self, make_routes: MakeRoutes) -> None:
        """GRID-135"""
        both, job_id = (make_routes(), make_routes()), str(uuid.uuid4())
        placed = await asyncio.gather(*(both[n % 2].place(job_id, f"g{n}", 5.0) for n in range(10)))
        assert len(set(placed)) == 1

    async def test_a_job_may_be_moved_once_by_each_who_saw_it_there(self, make_routes: MakeRoutes) -> None:
        routes, other, job_id = make_routes(), make_routes(), str(uuid.uuid4())
        placed = await routes.place(job_id, "g1", 5.0)
        moved = await routes.move(placed, "g2", 6.0)
        assert (moved.group, moved.at) == ("g2", 6.0)
        assert await other.move(placed, "g3", 7.0) == moved  # another was faster
        back = await other.move(moved, "g1", 8.0)
        assert await routes.find(job_id) == back

    async def test_of_many_that_move_a_job_all_send_it_to_one_group(self, make_routes: MakeRoutes) -> None:
        both, job_id = (make_routes(), make_routes()), str(uuid.uuid4())
        placed = await both[0].place(job_id, "g1", 5.0)
        moved = await asyncio.gather(*(both[n % 2].move(placed, f"m{n}", 6.0) for n in range(10)))
        assert len(set(moved)) == 1
        assert moved[0].group.startswith("m")
