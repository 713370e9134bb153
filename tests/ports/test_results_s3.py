"""Results in S3: the contract, the bucket's settings, and the addresses that are signed.

The emulator believes every signature, so what is signed is computed here once more.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import http.client
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from botocore.exceptions import ClientError

from contracts.results import KEY, ResultsContract, put
from pyoco_server.config import AwsSettings
from pyoco_server.errors import DependencyUnavailable, SettingError
from pyoco_server.ports.aws import client as aws_client
from pyoco_server.ports.aws.client import open_s3
from pyoco_server.ports.results.port import EXISTS_DIFFERENT, Results
from pyoco_server.ports.results.s3 import S3Results
from support.priced.aws_clients import settings_of
from support.priced.servers import Aws, MotoServer

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client

BUCKET = "dpp-results"
URL = f"s3://{BUCKET}"
REGION = "eu-central-1"
DAY = 86_400


def store(client: S3Client, url: str = URL, retention_seconds: int = 30 * DAY) -> S3Results:
    return S3Results(client, url, REGION, retention_seconds)


@pytest.fixture
async def client(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[S3Client]:
    async with open_s3(settings_of(aws, monkeypatch)) as client:
        yield client


@pytest.fixture
async def results(client: S3Client) -> S3Results:
    results = store(client)
    await results.start()
    return results


class TestS3Results(ResultsContract):
    @pytest.fixture
    async def elsewhere(self, results: Results, client: S3Client) -> Results:
        return store(client)


class TestTheBucket:
    async def test_it_is_closed_and_forgets(self, results: S3Results, client: S3Client) -> None:
        """PRICED-166, PRICED-213, PRICED-214"""
        block = await client.get_public_access_block(Bucket=BUCKET)
        assert set(block["PublicAccessBlockConfiguration"].values()) == {True}
        assert len(block["PublicAccessBlockConfiguration"]) == 4
        (rule,) = (await client.get_bucket_lifecycle_configuration(Bucket=BUCKET))["Rules"]
        assert (rule["Status"], rule["Expiration"]["Days"]) == ("Enabled", 30)
        assert rule["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"] == 7
        assert results.bucket == BUCKET

    @pytest.mark.parametrize(("seconds", "days"), [(1, 1), (DAY, 1), (DAY + 1, 2), (30 * DAY, 30)])
    async def test_days_are_whole_and_never_too_few(self, client: S3Client, seconds: int, days: int) -> None:
        """PRICED-167"""
        await store(client, retention_seconds=seconds).start()
        (rule,) = (await client.get_bucket_lifecycle_configuration(Bucket=BUCKET))["Rules"]
        assert rule["Expiration"]["Days"] == days

    async def test_a_retention_that_grows_counts_and_one_that_shrinks_deletes_nothing(self, client: S3Client) -> None:
        """PRICED-167: what lies there was promised for as long as it was kept then"""
        for days, kept in ((7, 7), (30, 30), (1, 30)):
            await store(client, retention_seconds=days * DAY).start()
            (rule,) = (await client.get_bucket_lifecycle_configuration(Bucket=BUCKET))["Rules"]
            assert rule["Expiration"]["Days"] == kept

    async def test_a_bucket_that_is_there_is_put_right_and_the_rules_of_others_stay(self, client: S3Client) -> None:
        """PRICED-214"""
        where: Any = {"LocationConstraint": REGION}
        await client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration=where)
        theirs: Any = {"ID": "theirs", "Status": "Enabled", "Filter": {"Prefix": "x/"}, "Expiration": {"Days": 3}}
        ours: Any = {"ID": "pyoco-results", "Status": "Disabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 3}}
        await client.put_bucket_lifecycle_configuration(Bucket=BUCKET, LifecycleConfiguration={"Rules": [theirs, ours]})
        await store(client).start()
        rules = (await client.get_bucket_lifecycle_configuration(Bucket=BUCKET))["Rules"]
        assert {rule["ID"]: (rule["Status"], rule["Expiration"]["Days"]) for rule in rules} == {
            "theirs": ("Enabled", 3),
            "pyoco-results": ("Enabled", 30),
        }
        await client.get_public_access_block(Bucket=BUCKET)

    async def test_a_prefix_keeps_results_apart(self, results: S3Results, client: S3Client) -> None:
        inside = store(client, f"{URL}/team/a/")
        await inside.start()
        await put(inside, b"one")
        assert await results.head(KEY) is None
        assert await results.head(f"team/a/{KEY}") is not None
        assert f"/team/a/{KEY}?" in await inside.signed_url(KEY, 2**31)

    @pytest.mark.parametrize("url", ["s3://", "s3://ab", "s3://UPPER-case", "s3://dpp results", "s3://b" + "u" * 63])
    def test_what_is_no_name_is_refused(self, url: str) -> None:
        nobody: Any = None
        with pytest.raises(SettingError, match="PYOCO_RESULTS_URL"):
            store(nobody, url)

    async def test_a_bucket_of_others_is_used_as_it_is(
        self, results: S3Results, client: S3Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def refused(**_: object) -> None:
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "GetPublicAccessBlock")

        monkeypatch.setattr(client, "get_public_access_block", refused)
        await results.start()
        monkeypatch.setattr(client, "head_bucket", refused)
        with pytest.raises(DependencyUnavailable, match="AccessDenied"):
            await results.start()


class TestWritingOnce:
    async def test_of_two_who_write_at_once_one_wins(
        self, results: S3Results, client: S3Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """PRICED-209: the store itself decides, when both have looked before either wrote."""
        other, looked = store(client), asyncio.Barrier(2)
        head = S3Results._head

        async def slowly(self: S3Results, key: str) -> object:
            found = await head(self, key)
            if found is None:
                await looked.wait()
            return found

        monkeypatch.setattr(S3Results, "_head", slowly)
        outcomes = await asyncio.gather(put(results, b"one"), put(other, b"two"))
        assert outcomes.count(EXISTS_DIFFERENT) == 1
        found = await results.get(KEY)
        assert found is not None
        assert found[0] == (b"two" if outcomes[0] is EXISTS_DIFFERENT else b"one")

    async def test_an_object_of_a_stranger_stays(self, results: S3Results, client: S3Client) -> None:
        """PRICED-209"""
        await client.put_object(Bucket=BUCKET, Key=KEY, Body=b"one")
        assert await put(results, b"one") is EXISTS_DIFFERENT

    async def test_damaged_bytes_are_not_given_out(self, results: S3Results, client: S3Client) -> None:
        """PRICED-211"""
        await put(results, b"one")
        found = await client.head_object(Bucket=BUCKET, Key=KEY)
        await client.put_object(Bucket=BUCKET, Key=KEY, Body=b"two", Metadata=found["Metadata"])
        with pytest.raises(DependencyUnavailable):
            await results.get(KEY)


@dataclass(frozen=True)
class Signed:
    """A presigned address, taken apart."""

    url: str

    @property
    def query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.url).query).items()}

    def signature(self, secret_key: str) -> str:
        """SigV4 for query strings, as AWS describes it."""
        parts = urlsplit(self.url)
        query = {name: value for name, value in self.query.items() if name != "X-Amz-Signature"}
        canonical_query = "&".join(f"{quote(name, safe='')}={quote(query[name], safe='')}" for name in sorted(query))
        request = f"GET\n{parts.path}\n{canonical_query}\nhost:{parts.netloc}\n\nhost\nUNSIGNED-PAYLOAD"
        _, day, region, service, end = query["X-Amz-Credential"].split("/")
        scope = f"{day}/{region}/{service}/{end}"
        digest = hashlib.sha256(request.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{query['X-Amz-Date']}\n{scope}\n{digest}"
        key = f"AWS4{secret_key}".encode()
        for word in (day, region, service, end, text):
            key = hmac.digest(key, word.encode(), "sha256")
        return key.hex()


def answer_of(url: str) -> tuple[int, bytes]:
    """To a request without any credentials."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}" if parts.query else parts.path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


class TestSigning:
    async def test_an_address_opens_its_object_to_whoever_has_it(self, results: S3Results) -> None:
        """PRICED-212"""
        await put(results, b"one")
        url = await results.signed_url(KEY, int(time.time()) + 600)
        assert await asyncio.to_thread(answer_of, url) == (200, b"one")

    async def test_it_is_signed_as_aws_wants_it(self, results: S3Results) -> None:
        """PRICED-212: so AWS refuses every other key, and every other time."""
        url = Signed(await results.signed_url(KEY, int(time.time()) + 600))
        assert url.query["X-Amz-Algorithm"] == "AWS4-HMAC-SHA256"
        assert url.query["X-Amz-SignedHeaders"] == "host"
        assert f"/{REGION}/s3/aws4_request" in url.query["X-Amz-Credential"]
        assert url.query["X-Amz-Signature"] == url.signature("test")
        assert urlsplit(url.url).path == f"/{BUCKET}/{KEY}"
        for forged in (
            url.url.replace("pack_envelope", "other"),
            url.url.replace(f"X-Amz-Expires={url.query['X-Amz-Expires']}", "X-Amz-Expires=604800"),
        ):
            assert forged != url.url
            assert Signed(forged).signature("test") != url.query["X-Amz-Signature"]
        assert url.signature("another") != url.query["X-Amz-Signature"]

    @pytest.mark.parametrize("seconds", [600, 1, 0, -60, 30 * DAY])
    async def test_it_ends_when_it_should(self, results: S3Results, seconds: int) -> None:
        """PRICED-212: to the second, and within the week that AWS allows."""
        now = int(time.time())
        query = Signed(await results.signed_url(KEY, now + seconds)).query
        signed_at = time.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ")
        ends_at = int(time.mktime(signed_at)) - time.timezone + int(query["X-Amz-Expires"])
        assert now <= ends_at - int(query["X-Amz-Expires"]) <= now + 5
        if seconds == 30 * DAY:
            assert int(query["X-Amz-Expires"]) == 7 * DAY
        elif seconds > 5:
            assert ends_at == now + seconds
        else:
            assert int(query["X-Amz-Expires"]) <= max(0, seconds)

    async def test_without_a_signature_nobody_reads(self, results: S3Results) -> None:
        """PRICED-213"""
        await put(results, b"one")
        url = await results.signed_url(KEY, int(time.time()) + 600)
        status, _ = await asyncio.to_thread(answer_of, url.partition("?")[0])
        assert status == 403

    async def test_no_token_is_ours(self, results: S3Results) -> None:
        assert results.opens("a.b", 0) is None


class TestOutages:
    async def test_a_server_that_is_gone_says_so_in_time(self, client: S3Client, unused_port: int) -> None:
        """PRICED-211"""
        async with open_s3(AwsSettings(endpoint_url=f"http://127.0.0.1:{unused_port}", region=REGION)) as nobody:
            results = store(nobody)
            began = time.monotonic()
            outcomes = await asyncio.gather(
                results.start(),
                results.head(KEY),
                results.get(KEY),
                put(results, b"one"),
                results.ping(),
                return_exceptions=True,
            )
            assert {type(each) for each in outcomes} == {DependencyUnavailable}
            assert time.monotonic() - began < 60

    async def test_a_server_that_stands_still_says_so_in_time(
        self, results: S3Results, moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """PRICED-211"""
        monkeypatch.setattr(aws_client, "ANSWER_SECONDS", 1.0)
        with moto_server.frozen():
            began = time.monotonic()
            outcomes = await asyncio.gather(results.head(KEY), results.ping(), return_exceptions=True)
            assert {type(each) for each in outcomes} == {DependencyUnavailable}
            assert time.monotonic() - began < 60

    async def test_a_bucket_that_is_gone_is_not_a_missing_result(self, results: S3Results, client: S3Client) -> None:
        """PRICED-211"""
        await client.delete_bucket(Bucket=BUCKET)
        for doing in (results.head(KEY), results.get(KEY), put(results, b"one"), results.ping()):
            with pytest.raises(DependencyUnavailable):
                await doing

    @pytest.mark.parametrize("code", ["403", "AccessDenied", "500", "SlowDown", "InternalError"])
    async def test_a_refusal_is_not_a_missing_result(
        self, results: S3Results, client: S3Client, monkeypatch: pytest.MonkeyPatch, code: str
    ) -> None:
        """PRICED-211"""

        async def refused(**_: object) -> None:
            raise ClientError({"Error": {"Code": code, "Message": "no"}}, "HeadObject")

        monkeypatch.setattr(client, "head_object", refused)
        monkeypatch.setattr(client, "get_object", refused)
        for doing in (results.head(KEY), results.get(KEY)):
            with pytest.raises(DependencyUnavailable):
                await doing
