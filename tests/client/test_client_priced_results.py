"""Both clients and the results of priced runs: reading and saving them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyoco_server.http_client import AnswerDamaged
from support.client_twins import MakeClient
from support.priced.client_runs import RUN_ID, a_run
from support.scripted_gateway import answer, cut, scripted

ENVELOPE = b'{"data":{"answer_text":"yes"}}'


def completed(url: str, data: bytes = ENVELOPE, artifacts: list[Any] | None = None) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    result = {"presigned_url": url, "sha256": digest, "expires_at": "…", "artifacts": artifacts or []}
    return a_run("COMPLETED", result)


class TestResults:
    async def test_another_server_never_sees_the_key(self, make: MakeClient) -> None:
        """PRICED-77"""
        async with scripted() as gateway, scripted(answer(ENVELOPE)) as store:
            with_password = gateway.url.replace("http://", "http://me:word@")
            async with make(with_password, api_key="secret", api_key_header="X-Key") as client:
                data = await client.read_pack_result(completed(f"{store.url}/dpp-results/x?X-Amz-Signature=1"))
        assert data == ENVELOPE
        assert store.asked[0].path == "/dpp-results/x?X-Amz-Signature=1"
        assert not {"x-key", "authorization", "cookie"} & store.asked[0].headers.keys()
        assert "secret" not in str(store.asked[0])
        assert gateway.asked == []

    @pytest.mark.parametrize("root", ["", "http://127.0.0.1:1", "https://127.0.0.1"])
    async def test_the_gateways_own_address_leads_back_to_it(self, make: MakeClient, root: str) -> None:
        """PRICED-81: behind a proxy it knows neither its scheme nor its port"""
        async with scripted(answer(ENVELOPE)) as server, make(f"{server.url}/below") as client:
            assert await client.read_pack_result(completed(f"{root}/v1/results/abc.def")) == ENVELOPE
        assert server.asked[0].path == "/below/v1/results/abc.def"

    async def test_bytes_that_were_touched_are_not_given_out(self, make: MakeClient) -> None:
        """PRICED-169: fetched once more, and then it is an error"""
        async with (
            scripted(answer(b"{}"), answer(ENVELOPE), answer(b"{}")) as server,
            make(server.url, retries=1) as client,
        ):
            run = completed("/v1/results/x")
            assert await client.read_pack_result(run) == ENVELOPE
            server.turns.append(answer(b"{}"))
            with pytest.raises(AnswerDamaged, match="sha256"):
                await client.read_pack_result(run)

    async def test_no_more_is_read_than_a_result_may_have(self, make: MakeClient) -> None:
        """PRICED-132"""
        artifacts = [{"name": "ocr.md", "presigned_url": "/v1/results/y", "sha256": "0", "bytes": 3}]
        large = b"x" * 1_048_577
        async with scripted(answer(large), answer(b"four")) as server, make(server.url, retries=0) as client:
            run = completed("/v1/results/x", large, artifacts)
            with pytest.raises(AnswerDamaged, match="more than 1048576 bytes"):
                await client.read_pack_result(run)
            with pytest.raises(AnswerDamaged, match="more than 3 bytes"):
                await client.read_pack_result(run, "ocr.md")
            with pytest.raises(ValueError, match=r"no artifact 'x'; it has: ocr\.md"):
                await client.read_pack_result(run, "x")

    async def test_an_address_that_has_expired_is_told_without_telling_it(self, make: MakeClient) -> None:
        """PRICED-171: whoever has the address may read"""
        async with scripted(answer(b"<Error/>", 403)) as store, make("http://127.0.0.1:1") as client:
            with pytest.raises(httpx.HTTPStatusError) as told:
                await client.read_pack_result(completed(f"{store.url}/b/x?X-Amz-Signature=hush"))
        assert told.value.response.status_code == 403
        assert "hush" not in str(told.value)
        assert "expired" in str(told.value)

    @pytest.mark.parametrize("status", ["QUEUED", "PROCESSING", "FAILED"])
    async def test_a_run_without_a_result_has_none_to_read(self, make: MakeClient, status: str) -> None:
        """PRICED-12"""
        async with make("http://127.0.0.1:1") as client:
            with pytest.raises(ValueError, match=f"is {status}: there is no result"):
                await client.read_pack_result(a_run(status, {"reason_code": "X"} if status == "FAILED" else None))


def artifact(name: str, url: str, data: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    told = {"name": name, "presigned_url": url, "sha256": digest, "bytes": len(data)}
    return told | {"content_type": "text/markdown", "expires_at": "…"}


class TestSaving:
    async def test_all_that_a_run_has_made_lands_in_a_folder(self, make: MakeClient, tmp_path: Path) -> None:
        """PRICED-77, PRICED-169: from another server, which never sees the key; what is cut or touched comes again"""
        large = b"x" * 600_000
        store_turns = (cut, answer(large), answer(b"y" * 600_000), answer(large))
        async with scripted() as gateway, scripted(*store_turns) as store:
            artifacts = [
                artifact(name, f"{store.url}/b/{name}?X-Amz-Signature=1", large) for name in ("a.md", "b.docx")
            ]
            run = completed("http://127.0.0.1:1/v1/results/x", artifacts=artifacts)
            gateway.turns += [answer(run), answer(ENVELOPE)]
            heard: list[tuple[int, int | None]] = []
            async with make(gateway.url, api_key="secret") as client:
                folder = tmp_path / "new" / "folder"
                saved = await client.save_result(RUN_ID, folder, progress=lambda *told: heard.append(told))
        assert [asked.path for asked in gateway.asked] == [f"/v1/runs/{RUN_ID}", "/v1/results/x"]
        assert "secret" not in str(store.asked)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
            "pack_envelope.json": ENVELOPE,
            "a.md": large,
            "b.docx": large,
        }
        assert saved[1] == {
            "name": "a.md",
            "path": str(folder / "a.md"),
            "bytes": len(large),
            "sha256": hashlib.sha256(large).hexdigest(),
        }
        assert [each["name"] for each in saved] == ["pack_envelope.json", "a.md", "b.docx"]
        assert heard[0] == (len(ENVELOPE), len(ENVELOPE))
        assert heard[-1] == (len(large), len(large))

    async def test_a_file_is_written_whole_or_not_at_all(self, make: MakeClient, tmp_path: Path) -> None:
        """PRICED-132, PRICED-169: the one that was there stays as well"""
        (tmp_path / "a.md").write_text("old")
        for wrong, told in ((b"touched", "sha256"), (b"longer than it may be", "more than 7 bytes")):
            run = completed("/v1/results/x", artifacts=[artifact("a.md", "/v1/results/y", b"correct")])
            turns = (answer(run), answer(ENVELOPE), answer(wrong))
            async with scripted(*turns) as server, make(server.url, retries=0) as client:
                with pytest.raises(AnswerDamaged, match=told):
                    await client.save_result(RUN_ID, tmp_path, overwrite=True)
            assert {path.name for path in tmp_path.iterdir()} == {"pack_envelope.json", "a.md"}
            assert (tmp_path / "a.md").read_text() == "old"

    @pytest.mark.parametrize("there", ["a.md", "pack_envelope.json"])
    async def test_a_file_that_is_there_is_only_written_over_when_it_may_be(
        self, make: MakeClient, tmp_path: Path, there: str
    ) -> None:
        (tmp_path / there).write_text("old")
        run = completed("/v1/results/x", artifacts=[artifact("a.md", "/v1/results/y", b"#")])
        turns = (answer(run), answer(run), answer(ENVELOPE), answer(b"#"))
        async with scripted(*turns) as server, make(server.url) as client:
            with pytest.raises(FileExistsError, match=there):
                await client.save_result(RUN_ID, tmp_path)
            assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
            assert len(server.asked) == 1
            assert len(await client.save_result(RUN_ID, tmp_path, overwrite=True)) == 2
        assert (tmp_path / "a.md").read_bytes() == b"#"
        assert (tmp_path / "pack_envelope.json").read_bytes() == ENVELOPE

    @pytest.mark.parametrize(
        ("names", "told"),
        [
            (["../a.md"], "no name of a file"),
            (["/a.md"], "no name of a file"),
            ([".."], "no name of a file"),
            (["a.md", "a.md"], "two files of the name 'a.md'"),
            (["pack_envelope.json"], "two files of the name 'pack_envelope.json'"),
        ],
    )
    async def test_a_name_that_leads_elsewhere_is_refused_before_anything_is_fetched(
        self, make: MakeClient, tmp_path: Path, names: list[str], told: str
    ) -> None:
        run = completed("/v1/results/x", artifacts=[artifact(name, "/v1/results/y", b"#") for name in names])
        async with scripted(answer(run)) as server, make(server.url) as client:
            with pytest.raises(ValueError, match=told):
                await client.save_result(RUN_ID, tmp_path / "folder", overwrite=True)
        assert list(tmp_path.iterdir()) == []
        assert len(server.asked) == 1

    async def test_addresses_that_grow_old_are_asked_for_again(
        self, make: MakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """PRICED-171: they are good for ten minutes, and a slow line takes longer"""
        for name in ("aio_priced", "sync_priced"):
            monkeypatch.setattr(f"pyoco_server.client.{name}._ADDRESS_SECONDS", -1.0)
        looks = [
            answer(completed(f"/v1/results/e{at}", artifacts=[artifact("a.md", f"/v1/results/a{at}", b"#")]))
            for at in range(3)
        ]
        turns = (looks[0], looks[1], answer(ENVELOPE), looks[2], answer(b"#"))
        async with scripted(*turns) as server, make(server.url) as client:
            await client.save_result(RUN_ID, tmp_path)
        assert [asked.path for asked in server.asked[2::2]] == ["/v1/results/e1", "/v1/results/a2"]

    async def test_a_run_without_a_result_makes_no_folder(self, make: MakeClient, tmp_path: Path) -> None:
        """PRICED-12"""
        async with scripted(answer(a_run("PROCESSING"))) as server, make(server.url) as client:
            with pytest.raises(ValueError, match="is PROCESSING: there is no result"):
                await client.save_result(RUN_ID, tmp_path / "folder")
        assert list(tmp_path.iterdir()) == []
