"""What every store of ACL records promises."""

from __future__ import annotations

import asyncio
from typing import Protocol

from pyoco_server.ports.acl.port import Acl, AclRecord
from support.servers import unique
from support.waiting import eventually

__all__ = ["AclContract", "MakeAcl"]

CLIENT = AclRecord(api_key_ids=("k1", "k2"), execs=("calc*", "render"), max_cap=3, groups=("g?",))
WORKER = AclRecord(api_key_ids=("k3",), execs=("*",))


class MakeAcl(Protocol):
    """Over the test's one store, as another process would open it; stopped after the test."""

    async def __call__(self) -> Acl: ...


class AclContract:
    """An adapter passes all of it or does not ship."""

    async def test_a_record_is_found_by_everybody(self, make_acl: MakeAcl) -> None:
        """GRID-168"""
        acl, other, of = await make_acl(), await make_acl(), unique("x")
        assert acl.find("client", of) is None
        await acl.put("client", of, CLIENT)
        await acl.put("worker", of, WORKER)
        assert (acl.find("client", of), acl.find("worker", of)) == (CLIENT, WORKER)
        await eventually(lambda: (other.find("client", of), other.find("worker", of)) == (CLIENT, WORKER))
        mine = {key: record for key, record in (await make_acl()).all().items() if key[1] == of}
        assert mine == {("client", of): CLIENT, ("worker", of): WORKER}

    async def test_the_last_word_wins(self, make_acl: MakeAcl) -> None:
        acl, other, of = await make_acl(), await make_acl(), unique("x")
        for cap in range(8):
            await (acl, other)[cap % 2].put("client", of, AclRecord(api_key_ids=(), execs=(), max_cap=cap))
        for each in (acl, other, await make_acl()):
            await eventually(lambda each=each: (each.find("client", of) or CLIENT).max_cap == 7)  # type: ignore[misc]

    async def test_many_words_at_once_do_not_fail(self, make_acl: MakeAcl) -> None:
        both, of = (await make_acl(), await make_acl()), unique("x")
        await asyncio.gather(*(both[n % 2].put("client", of, CLIENT) for n in range(6)))
        await eventually(lambda: both[0].find("client", of) == both[1].find("client", of) == CLIENT)

    async def test_a_record_may_be_deleted_and_made_again(self, make_acl: MakeAcl) -> None:
        acl, other, of = await make_acl(), await make_acl(), unique("x")
        assert not await acl.delete("client", of)
        await acl.put("client", of, CLIENT)
        assert await other.delete("client", of)
        assert other.find("client", of) is None
        await eventually(lambda: acl.find("client", of) is None)
        assert not await acl.delete("client", of)
        await acl.put("client", of, CLIENT)
        await eventually(lambda: other.find("client", of) == CLIENT)
