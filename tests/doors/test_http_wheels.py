"""The wheel registry over HTTP: upload, list, download, delete, history."""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.core.api_key import make_key
from pyoco_server.core.wheel import TAGS_HEADER
from pyoco_server.ports.nats.link import Link
from support.doors_support import FORM, call, check_refusal, disposition, endless, form
from support.gateways import Gateway, error, fresh_gateway, open_gateway
from support.servers import config_for
from support.wheel_doors import Left, artifacts, history, left, register, upload
from support.wheels import build_wheel

WHEEL = "my_tasks-1.0-py3-none-any.whl"


def part(content: bytes, file_name: str = WHEEL) -> tuple[bytes, bytes]:
    return disposition("wheel", file_name), content


class TestUpload:
    async def test_a_wheel_is_registered_and_described(self, gateway: Gateway) -> None:
        """FLOW-151, FLOW-154, FLOW-210"""
        file_name, content = build_wheel("my-tasks", "1.0", pad_bytes=300_000)
        began = time.time()
        answer = await upload(gateway, file_name, content, tags="gpu,night")
        assert answer.status_code == 200, answer.text
        made = answer.json()
        assert made.keys() == {"name", "size_bytes", "bucket", "nuid", "modified", "sha256_hex", "tags"}
        assert made["name"] == file_name
        assert made["size_bytes"] == len(content)
        assert made["bucket"] == gateway.config.wheel_object_store_bucket
        assert made["sha256_hex"] == hashlib.sha256(content).hexdigest()
        assert made["tags"] == ["gpu", "night"]
        assert began - 5 < made["modified"] < time.time() + 5
        assert await artifacts(gateway) == [made]
        info = await gateway.backend.wheels.info(file_name)
        assert (info.object_id, info.headers[TAGS_HEADER]) == (made["nuid"], "gpu,night")  # FLOW-211

    async def test_a_wheel_without_tags_has_none(self, gateway: Gateway) -> None:
        """FLOW-154"""
        assert (await register(gateway))["tags"] == []
        assert TAGS_HEADER not in (await gateway.backend.wheels.info(WHEEL)).headers

    async def test_tags_are_trimmed_and_merged(self, gateway: Gateway) -> None:
        """FLOW-212"""
        cases: list[tuple[str, list[str]]] = [
            (" a , b ,a,, b", ["a", "b"]),
            ("", []),
            (" , ,", []),
            ("A_b-9", ["A_b-9"]),
        ]
        for number, (text, tags) in enumerate(cases):
            assert (await register(gateway, f"tasks-{number}", fields={"tags": text}))["tags"] == tags, text

    async def test_fields_come_in_any_order_and_piece_by_piece(self, gateway: Gateway) -> None:
        """FLOW-151"""
        _, content = build_wheel()
        tags, flag = (disposition("tags"), b"a"), (disposition("replace"), b"false")
        unknown = disposition("comment"), b"what nobody knows is ignored"

        async def bytewise(body: bytes) -> AsyncIterator[bytes]:
            for at in range(0, len(body), 7):
                yield body[at : at + 7]

        for parts in ((part(content), tags, flag), (flag, tags, part(content)), (tags, unknown, part(content))):
            status, made, _ = await call(gateway.app, "/wheels", bytewise(form(*parts)), FORM)
            assert (status, made["tags"]) == (200, ["a"])
            assert made["sha256_hex"] == hashlib.sha256(content).hexdigest()
            assert (await gateway.client.delete(f"/wheels/{WHEEL}")).status_code == 200

    async def test_replace_is_accepted_and_overrides_nothing(self, gateway: Gateway) -> None:
        """FLOW-216"""
        for flag in ["true", "false", "1", "0", "Yes", "off"]:
            package = f"tasks-{flag}"
            await register(gateway, package, fields={"replace": flag})
            answer = await upload(gateway, *build_wheel(package), replace=flag)
            assert answer.status_code == 409, flag

    async def test_what_is_not_newer_is_refused(self, gateway: Gateway) -> None:
        """FLOW-56, FLOW-158, FLOW-213"""
        cases: list[tuple[str, str]] = [
            ("1.0", "1.0"),
            ("1.0", "1.0.0"),
            ("1.0", "0.9"),
            ("1.10", "1.9"),
            ("2.0", "2.0.dev1"),
            ("2.0", "2.0rc1"),
            ("1!1.0", "2.0"),
            ("1.0+b", "1.0+a"),
            ("1.0.post1", "1.0"),
        ]
        there: list[dict[str, Any]] = []
        for number, (registered, offered) in enumerate(cases):
            package = f"tasks-{number}"
            made = await register(gateway, package, registered)
            there.append(made)
            answer = await upload(gateway, *build_wheel(package, offered))
            assert answer.status_code == 409, (registered, offered)
            body = answer.json()
            (problem,) = body.pop("errors")
            assert body == error(22, "same/older version is rejected"), (registered, offered)
            assert made["name"] in problem["msg"], (registered, offered)
            assert await artifacts(gateway) == there, (registered, offered)  # they are listed by name
            assert len(await history(gateway)) == len(there), (registered, offered)

    async def test_neither_tags_nor_build_nor_platform_nor_spelling_make_it_newer(self, gateway: Gateway) -> None:
        """FLOW-40, FLOW-213: it is refused before anybody looks inside"""
        cases: list[tuple[str, dict[str, str]]] = [
            ("My.Tasks-1.0-py3-none-any.whl", {}),
            ("my_tasks-1.0-7-py3-none-any.whl", {}),
            ("my_tasks-1.0-cp311-cp311-linux_x86_64.whl", {}),
            (WHEEL, {"tags": "others"}),
        ]
        await register(gateway)
        for file_name, fields in cases:
            assert (await upload(gateway, file_name, b"whatever is in it", None, **fields)).status_code == 409, (
                file_name,
                fields,
            )

    async def test_a_newer_version_leaves_older_ones_in_place(self, gateway: Gateway) -> None:
        """FLOW-215"""
        made = [await register(gateway, version=version) for version in ("1.9", "1.10", "2.0.dev1", "2.0")]
        made.append(await register(gateway, "another", "0.1"))
        assert await artifacts(gateway) == sorted(made, key=lambda each: str(each["name"]))

    async def test_a_deleted_version_no_longer_counts(self, gateway: Gateway) -> None:
        """FLOW-214"""
        await register(gateway, version="1.0")
        made = await register(gateway, version="2.0")
        await gateway.client.delete(f"/wheels/{made['name']}")
        again = await register(gateway, version="2.0")
        assert again["nuid"] != made["nuid"]

    async def test_what_somebody_else_put_there_is_passed_over(self, gateway: Gateway) -> None:
        async def nothing() -> AsyncIterator[bytes]:
            yield b"x"

        await gateway.backend.wheels.put("notes.txt", nothing(), 1)
        await gateway.backend.wheels.put("x-1.0-py3-none-any.whl", nothing(), 1, {TAGS_HEADER: "not a tag"})
        made = await register(gateway)
        assert await artifacts(gateway) == [made]
        assert (await gateway.client.get("/wheels/notes.txt")).json() == error(23, "wheel not found")


class TestSize:
    async def test_exactly_the_cap_is_taken_and_one_byte_more_is_not(
        self, link: Link, nats_url: str, tmp_path: Path
    ) -> None:
        """FLOW-58, FLOW-157, FLOW-217"""
        file_name, content = build_wheel(pad_bytes=100_000)
        async with fresh_gateway(link, nats_url, tmp_path, wheel_max_bytes=len(content) - 1) as gateway:
            answer = await upload(gateway, file_name, content)
            assert answer.status_code == 413
            body = answer.json()
            (problem,) = body.pop("errors")
            assert body == error(2, "wheel too large")
            assert (problem["loc"], str(len(content) - 1) in problem["msg"]) == (["body", "wheel"], True)
            assert (await left(link, gateway.config)).chunk_subjects == 0
        async with fresh_gateway(link, nats_url, tmp_path, wheel_max_bytes=len(content)) as gateway:
            assert (await upload(gateway, file_name, content)).status_code == 200

    async def test_a_body_that_says_it_is_larger_is_not_read(self, link: Link, nats_url: str, tmp_path: Path) -> None:
        async with fresh_gateway(link, nats_url, tmp_path, wheel_max_bytes=1_000_000) as gateway:
            start = form(part(b""), end=b"")[:-2]
            headers = FORM | {"content-length": "1100000"}
            status, body, taken = await call(gateway.app, "/wheels", endless(start, b"x" * 65_536), headers)
        assert (status, body["detail"], taken) == (413, "wheel too large", 0)

    async def test_reading_stops_where_it_is_too_large(self, link: Link, nats_url: str, tmp_path: Path) -> None:
        """FLOW-157"""
        async with fresh_gateway(link, nats_url, tmp_path, wheel_max_bytes=1_000_000) as gateway:
            start = form(part(b""), end=b"")[:-2]
            status, body, taken = await call(gateway.app, "/wheels", endless(start, b"x" * 10_000), FORM)
        assert (status, body["detail"]) == (413, "wheel too large")
        assert taken <= 1_010_000 + len(start)

    async def test_a_bad_name_is_refused_before_the_bytes_are_read(self, gateway: Gateway) -> None:
        """FLOW-156"""
        start = form(part(b"", "nothing.whl"), end=b"")[:-2]
        status, _, taken = await call(gateway.app, "/wheels", endless(start, b"x" * 10_000), FORM)
        assert status == 422
        assert taken < 40_000


NO_WHEEL_NAMES = [
    "",
    "wheel",
    "flow.yaml",
    "my_tasks-1.0.tar.gz",
    "my_tasks.whl",
    "my_tasks-1.0.whl",
    "my_tasks-1.0-py3-none.whl",
    "my_tasks-one-py3-none-any.whl",
    "my_tasks-1.0-build-py3-none-any.whl",
    "my tasks-1.0-py3-none-any.whl",
    "my_tasks-1.0-py3-none-any.whl.exe",
    "my_tasks-1.0-py3-none-any.WHL",
    "../" + WHEEL,
    "a/" + WHEEL,
    "/" + WHEEL,
    "..\\" + WHEEL,
    "C:\\" + WHEEL,
    "\\\\server\\" + WHEEL,
    "x" * 300 + "-1.0-py3-none-any.whl",
]


class TestBadInput:
    async def test_a_file_that_is_not_named_like_a_wheel_is_refused(self, gateway: Gateway, link: Link) -> None:
        """FLOW-39, FLOW-156"""
        for file_name in NO_WHEEL_NAMES:
            body = form((disposition("wheel", file_name), build_wheel()[1]))
            answer = await gateway.client.post("/wheels", content=body, headers=FORM)
            assert answer.status_code == 422, file_name
            assert check_refusal(answer)[0]["loc"] == ["body", "wheel"], file_name
            assert await left(link, gateway.config) == Left(0, 0, 0), file_name

    async def test_a_bad_form_is_refused_with_the_name_of_the_field(self, gateway: Gateway) -> None:
        """FLOW-59, FLOW-156"""
        cases: list[tuple[str, list[tuple[bytes, bytes]], list[str]]] = [
            ("no part", [], ["body", "wheel"]),
            ("no file", [(disposition("tags"), b"a")], ["body", "wheel"]),
            ("an empty file", [part(b"")], ["body", "wheel"]),
            ("a field, not a file", [(disposition("wheel"), b"PK")], ["body", "wheel"]),
            ("two files", [part(b"PK"), part(b"PK")], ["body", "wheel"]),
            ("a tag with a space", [part(b"PK"), (disposition("tags"), b"a b")], ["body", "tags"]),
            ("a tag with a dot", [part(b"PK"), (disposition("tags"), b"a.b")], ["body", "tags"]),
            ("a long tag", [part(b"PK"), (disposition("tags"), b"x" * 129)], ["body", "tags"]),
            ("tags in no UTF-8", [part(b"PK"), (disposition("tags"), b"\xff")], ["body", "tags"]),
            ("tags as a file", [part(b"PK"), (disposition("tags", "t"), b"a")], ["body", "tags"]),
            ("too many bytes", [part(b"PK"), (disposition("tags"), b"x" * 9000)], ["body", "tags"]),
            (
                "65 tags",
                [part(b"PK"), (disposition("tags"), b",".join(b"t%d" % n for n in range(65)))],
                ["body", "tags"],
            ),
            ("neither yes nor no", [part(b"PK"), (disposition("replace"), b"maybe")], ["body", "replace"]),
            ("no text", [part(b"PK"), (disposition("replace"), b"\xff")], ["body", "replace"]),
            ("20 parts", [part(b"PK"), *[(disposition(f"p{n}"), b"") for n in range(20)]], ["body"]),
        ]
        for what, parts, loc in cases:
            answer = await gateway.client.post("/wheels", content=form(*parts), headers=FORM)
            assert answer.status_code == 422, what
            assert check_refusal(answer)[0]["loc"] == loc, what
            assert await artifacts(gateway) == [], what

    async def test_64_tags_of_the_greatest_length_are_taken(self, gateway: Gateway) -> None:
        tags = [f"{n:0128d}" for n in range(64)]
        assert (await register(gateway, fields={"tags": ", ".join(tags)}))["tags"] == tags

    async def test_a_form_that_was_cut_is_refused(self, gateway: Gateway) -> None:
        body = form(part(build_wheel()[1]))
        for cut in [0, 10, 60, 150, 400]:
            answer = await gateway.client.post("/wheels", content=body[:cut], headers=FORM)
            assert answer.status_code == 422, cut
            check_refusal(answer)
            answer = await gateway.client.post("/wheels", content=body[:-9], headers=FORM)
            assert answer.status_code == 422, cut
            assert check_refusal(answer)[0]["loc"] == ["body"], cut
            assert await artifacts(gateway) == [], cut


class TestDownload:
    @pytest.mark.parametrize("pad_bytes", [0, 3_000_000])
    async def test_the_bytes_come_back_with_their_digest(self, gateway: Gateway, pad_bytes: int) -> None:
        """FLOW-152"""
        file_name, content = build_wheel(pad_bytes=pad_bytes)
        await upload(gateway, file_name, content)
        answer = await gateway.client.get(f"/wheels/{file_name}")
        digest = hashlib.sha256(content)
        assert (answer.status_code, answer.content == content) == (200, True)
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-length"] == str(len(content))
        assert answer.headers["etag"] == f'"{digest.hexdigest()}"'
        assert answer.headers["repr-digest"] == f"sha-256=:{base64.b64encode(digest.digest()).decode()}:"
        assert answer.headers["content-disposition"] == f'attachment; filename="{file_name}"'
        assert answer.headers["cache-control"] == "private, no-cache"
        head = await gateway.client.head(f"/wheels/{file_name}")
        assert (head.status_code, head.content) == (200, b"")
        assert dict(head.headers) == dict(answer.headers)

    async def test_what_the_client_has_is_not_sent_again(self, gateway: Gateway) -> None:
        made = await register(gateway)
        etag = f'"{made["sha256_hex"]}"'
        for known in (etag, f"W/{etag}", f'"other", {etag}', "*"):
            answer = await gateway.client.get(f"/wheels/{WHEEL}", headers={"If-None-Match": known})
            assert (answer.status_code, answer.content) == (304, b"")
            assert answer.headers["etag"] == etag
        for other in ('"other"', made["sha256_hex"], ""):
            answer = await gateway.client.get(f"/wheels/{WHEEL}", headers={"If-None-Match": other})
            assert answer.status_code == 200

    async def test_an_unknown_wheel_is_not_found(self, gateway: Gateway) -> None:
        """FLOW-55, FLOW-159"""
        names: list[str] = [
            *(WHEEL, "x.whl", "history.whl", "notes.txt", "*", ">", "%00.whl", "%E3%81%82.whl", "x" * 300 + ".whl"),
            *(f"a%2F{WHEEL}", f"..%2f..%2F{WHEEL}", f"%2F{WHEEL}", f"{WHEEL}%2F", "%2F"),
        ]
        for method in ["GET", "DELETE", "HEAD"]:
            for name in names:
                answer = await gateway.client.request(method, f"/wheels/{name}")
                assert answer.status_code == 404, (method, name)
                assert method == "HEAD" or answer.json() == error(23, "wheel not found"), (method, name)


@pytest.mark.parametrize(
    "odd", [b"\xff", b'{"name": "odd", "bucket": "b", "nuid": "n", "digest": "SHA-256=\xe6\x97\xa5"}']
)
async def test_one_odd_object_among_the_wheels_stops_nothing(gateway: Gateway, link: Link, odd: bytes) -> None:
    """FLOW-149, FLOW-151 to FLOW-153"""
    await link.store(f"$O.{gateway.config.wheel_object_store_bucket}.M.b2Rk", odd)
    made = await register(gateway)
    assert await artifacts(gateway) == [made]
    assert (await gateway.client.get(f"/wheels/{WHEEL}")).status_code == 200
    assert (await gateway.client.delete(f"/wheels/{WHEEL}")).status_code == 200
    assert await artifacts(gateway) == []


class TestDelete:
    async def test_a_deleted_wheel_is_gone(self, gateway: Gateway, link: Link) -> None:
        """FLOW-153"""
        await register(gateway, pad_bytes=300_000)
        answer = await gateway.client.delete(f"/wheels/{WHEEL}")
        assert (answer.status_code, answer.json()) == (200, {"name": WHEEL, "deleted": True})
        assert await artifacts(gateway) == []
        for method in ("GET", "DELETE"):
            assert (await gateway.client.request(method, f"/wheels/{WHEEL}")).status_code == 404
        assert (await left(link, gateway.config)).chunk_subjects == 0

    async def test_history_is_never_taken_for_a_wheel(self, gateway: Gateway) -> None:
        """FLOW-160"""
        assert await history(gateway) == []
        answer = await gateway.client.delete("/wheels/history")
        assert (answer.status_code, answer.json()) == (404, error(23, "wheel not found"))


class TestHistory:
    async def test_each_change_adds_one_event(self, gateway: Gateway) -> None:
        """FLOW-221, FLOW-223 to FLOW-225"""
        began = time.time()
        made = await register(gateway, fields={"tags": "a,b"})
        gateway.client.headers["User-Agent"] = "x" * 2000
        await gateway.client.delete(f"/wheels/{WHEEL}")
        deleted, uploaded = await history(gateway)
        assert uploaded.keys() >= {"event_id", "occurred_at", "action", "wheel_name", "tags", "source", "actor"}
        assert (uploaded["action"], deleted["action"]) == ("upload", "delete")
        assert uploaded["event_id"] != deleted["event_id"]
        assert began <= uploaded["occurred_at"] <= deleted["occurred_at"] <= time.time()
        assert uploaded["source"]["user_agent"].startswith("python-httpx/")
        assert deleted["source"] == {"via": "http", "remote_addr": "127.0.0.1", "user_agent": "x" * 512}
        for event in (uploaded, deleted):
            assert (event["wheel_name"], event["tags"]) == (WHEEL, ["a", "b"])
            assert (event["size_bytes"], event["sha256_hex"]) == (made["size_bytes"], made["sha256_hex"])
            assert event["actor"] == {"tenant_id": None, "api_key_id": None}

    async def test_what_is_refused_adds_none(self, gateway: Gateway) -> None:
        """FLOW-221"""
        await register(gateway)
        await upload(gateway, *build_wheel())
        await upload(gateway, "other-1.0-py3-none-any.whl", build_wheel()[1])
        await gateway.client.delete("/wheels/other-1.0-py3-none-any.whl")
        assert [event["action"] for event in await history(gateway)] == ["upload"]

    async def test_events_are_found_by_wheel_and_action_newest_first(self, gateway: Gateway) -> None:
        """FLOW-150"""
        one, two = [(await register(gateway, version=version))["name"] for version in ("1.0", "2.0")]
        await gateway.client.delete(f"/wheels/{one}")
        assert [event["wheel_name"] for event in await history(gateway)] == [one, two, one]
        assert [event["wheel_name"] for event in await history(gateway, limit=2)] == [one, two]
        assert [event["action"] for event in await history(gateway, wheel_name=one)] == ["delete", "upload"]
        assert [event["wheel_name"] for event in await history(gateway, action="upload")] == [two, one]
        assert await history(gateway, action="delete", wheel_name=two) == []

    async def test_a_bad_query_is_refused(self, gateway: Gateway) -> None:
        """FLOW-155"""
        cases: list[tuple[str, str]] = [
            ("limit=0", "limit"),
            ("limit=501", "limit"),
            ("limit=-1", "limit"),
            ("limit=", "limit"),
            ("limit=ten", "limit"),
            ("limit=1.5", "limit"),
            ("limit=%D9%A1", "limit"),
            ("limit=1&limit=2", "limit"),
            ("wheel_name=x", "wheel_name"),
            ("wheel_name=", "wheel_name"),
            ("wheel_name=a.whl&wheel_name=b.whl", "wheel_name"),
            ("action=replace", "action"),
            ("action=", "action"),
            ("action=UPLOAD", "action"),
        ]
        for query, name in cases:
            answer = await gateway.client.get(f"/wheels/history?{query}")
            assert answer.status_code == 422, query
            assert check_refusal(answer)[0]["loc"] == ["query", name], query

    async def test_the_bounds_of_the_limit_are_taken(self, gateway: Gateway) -> None:
        """FLOW-150"""
        for limit in (1, 500):
            assert await history(gateway, limit=limit) == []


async def test_any_key_opens_the_registry_and_no_key_is_ever_shown(link: Link, nats_url: str, tmp_path: Path) -> None:
    """FLOW-220, FLOW-225, FLOW-276"""
    config = config_for(nats_url, data_dir=str(tmp_path), http_auth_mode="api_key", auth_pepper="pepper")
    async with open_gateway(config) as gateway:
        keys: dict[str, tuple[str, Any]] = {}
        for tenant in ("team-a", "team-b"):
            plain, record = make_key(tenant, "pepper", time.time(), secrets.token_hex, secrets.token_urlsafe)
            assert await gateway.backend.keys.add(record)
            keys[tenant] = plain, record.key_id
        for method, path in [("GET", "/wheels"), ("GET", "/wheels/history"), ("POST", "/wheels")]:
            assert (await gateway.client.request(method, path)).status_code == 401
        for method in ("GET", "DELETE"):
            assert (await gateway.client.request(method, f"/wheels/{WHEEL}")).status_code == 401
        a, b = ({"X-API-Key": plain} for plain, _ in keys.values())
        assert (await upload(gateway, *build_wheel(), headers=a)).status_code == 200
        assert len((await gateway.client.get("/wheels", headers=b)).json()) == 1
        assert (await gateway.client.get(f"/wheels/{WHEEL}", headers=b)).status_code == 200
        assert (await gateway.client.delete(f"/wheels/{WHEEL}", headers=b)).status_code == 200
        answer = await gateway.client.get("/wheels/history", headers=a)
        assert [event["actor"] for event in answer.json()] == [
            {"tenant_id": tenant, "api_key_id": keys[tenant][1]} for tenant in ("team-b", "team-a")
        ]
        assert not any(plain in answer.text for plain, _ in keys.values())
