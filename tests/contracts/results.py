"""What every store of results promises."""

from __future__ import annotations

import asyncio
import hashlib
import os

import pytest

from pyoco_server.ports.results.port import EXISTS_DIFFERENT, ExistsDifferent, ResultHead, Results

__all__ = ["KEY", "ResultsContract", "put"]

KEY = "dpp/t_a/2026/02/13/0b0e8f0a-5d0c-4b7a-9d0e-2f6f1c1a7b11/pack_envelope.json"
METADATA = {"run-id": "0b0e8f0a-5d0c-4b7a-9d0e-2f6f1c1a7b11"}


async def put(
    results: Results, data: bytes, key: str = KEY, content_type: str = "application/json"
) -> ResultHead | ExistsDifferent:
    return await results.put(key, data, content_type, hashlib.sha256(data).hexdigest(), METADATA)


class ResultsContract:
    """An adapter passes all of it or does not ship. `elsewhere` is the same store in another process's hands."""

    @pytest.mark.parametrize("data", [b'{"a": 1}', b"", os.urandom(1_300_000)], ids=["small", "empty", "large"])
    async def test_what_was_put_is_there(self, results: Results, elsewhere: Results, data: bytes) -> None:
        """PRICED-207, PRICED-210"""
        wanted = ResultHead(hashlib.sha256(data).hexdigest(), len(data), "application/json", METADATA)
        assert await put(results, data) == wanted
        assert await elsewhere.head(KEY) == wanted
        assert await elsewhere.get(KEY) == (data, wanted)

    async def test_what_was_never_put_is_not_there(self, results: Results) -> None:
        assert await results.head(KEY) is None
        assert await results.get(KEY) is None

    async def test_the_same_again_is_fine(self, results: Results, elsewhere: Results) -> None:
        """PRICED-209"""
        first = await put(results, b"one")
        assert await put(elsewhere, b"one") == first

    async def test_other_bytes_under_its_key_are_refused(self, results: Results, elsewhere: Results) -> None:
        """PRICED-209"""
        await put(results, b"one")
        assert await put(elsewhere, b"two") is EXISTS_DIFFERENT
        found = await results.get(KEY)
        assert found is not None
        assert found[0] == b"one"

    async def test_a_wrong_digest_stores_nothing(self, results: Results) -> None:
        """PRICED-210"""
        with pytest.raises(ValueError, match="digest"):
            await results.put(KEY, b"one", "text/plain", hashlib.sha256(b"two").hexdigest(), {})
        assert await results.head(KEY) is None

    async def test_keys_are_apart(self, results: Results) -> None:
        """PRICED-212"""
        artifact = KEY.replace("pack_envelope.json", "artifacts/a.b_c-1.txt")
        await put(results, b"{}")
        await put(results, b"text", artifact, "text/plain; charset=utf-8")
        head = await results.head(artifact)
        assert head is not None
        assert (head.content_type, head.size_bytes) == ("text/plain; charset=utf-8", 4)
        assert await results.signed_url(KEY, 2**31) != await results.signed_url(artifact, 2**31)

    async def test_a_start_may_be_repeated(self, results: Results, elsewhere: Results) -> None:
        await put(results, b"one")
        await asyncio.gather(results.start(), elsewhere.start())
        assert await results.head(KEY) is not None
        await results.ping()
