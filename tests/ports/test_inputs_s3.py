"""Inputs in S3: the contract, the bucket's settings, and outages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from contracts.inputs import KEY, MANY, InputsContract, pieces, put, sha256_of
from pyoco_server.config import AwsSettings, PricedConfig
from pyoco_server.errors import DependencyUnavailable, SettingError
from pyoco_server.ports.aws.client import open_s3
from pyoco_server.ports.inputs.port import ANY_TYPE, InputHead, Inputs
from pyoco_server.ports.inputs.s3 import S3Inputs
from support.priced.aws_clients import settings_of
from support.priced.servers import Aws

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client

BUCKET = "dpp-inputs"
REGION = "eu-central-1"


def store(client: S3Client, **settings: Any) -> S3Inputs:
    return S3Inputs(client, PricedConfig(**settings), REGION)


@pytest.fixture
async def client(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[S3Client]:
    async with open_s3(settings_of(aws, monkeypatch)) as client:
        yield client


@pytest.fixture
async def inputs(client: S3Client) -> S3Inputs:
    inputs = store(client)
    await inputs.start()
    return inputs


class TestS3Inputs(InputsContract):
    @pytest.fixture
    async def elsewhere(self, inputs: Inputs, client: S3Client) -> Inputs:
        return store(client)


async def test_the_bucket_is_closed_and_forgets(inputs: S3Inputs, client: S3Client) -> None:
    """PRICED-166, PRICED-213, PRICED-214: as that of results"""
    block = await client.get_public_access_block(Bucket=BUCKET)
    assert list(block["PublicAccessBlockConfiguration"].values()) == [True] * 4
    (rule,) = (await client.get_bucket_lifecycle_configuration(Bucket=BUCKET))["Rules"]
    assert (rule["ID"], rule["Status"], rule["Expiration"]["Days"]) == ("pyoco-inputs", "Enabled", 30)
    assert rule["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"] == 7
    assert inputs.bucket == BUCKET


@pytest.mark.parametrize("name", ["Dpp", "dpp_inputs", "ab", "b" * 64, "-dpp"])
def test_a_name_that_s3_does_not_take_is_refused(name: str) -> None:
    nobody: Any = None
    with pytest.raises(SettingError, match="PYOCO_PACK_INPUT_BUCKET"):
        store(nobody, pack_input_bucket=name)


async def test_a_put_that_fails_in_the_middle_leaves_no_parts(
    inputs: S3Inputs, client: S3Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = client.upload_part

    async def second_fails(**more: Any) -> Any:
        if more["PartNumber"] == 2:
            raise ClientError({"Error": {"Code": "SlowDown", "Message": "no"}}, "UploadPart")
        return await real(**more)

    monkeypatch.setattr(client, "upload_part", second_fails)
    data = bytes(17_000_000)
    with pytest.raises(DependencyUnavailable, match="SlowDown"):
        await inputs.put(KEY, pieces(data), len(data), "image/png", sha256_of(data))
    assert await inputs.head(KEY) is None
    assert "Uploads" not in await client.list_multipart_uploads(Bucket=BUCKET)


async def test_a_file_of_somebody_else_is_read_without_a_digest(
    inputs: S3Inputs, client: S3Client, tmp_path: Path
) -> None:
    for told in ({}, {"sha256": "not one"}):
        await client.put_object(Bucket=BUCKET, Key=KEY, Body=b"one", Metadata=told, ContentType=ANY_TYPE)
        assert await inputs.fetch(KEY, tmp_path / "copy", 3) == InputHead(3, ANY_TYPE, None)
        assert (tmp_path / "copy").read_bytes() == b"one"


async def test_damaged_bytes_are_not_given_out(inputs: S3Inputs, client: S3Client, tmp_path: Path) -> None:
    await put(inputs, b"one")
    await client.put_object(Bucket=BUCKET, Key=KEY, Body=b"two", Metadata={"sha256": sha256_of(b"one")})
    with pytest.raises(DependencyUnavailable):
        await inputs.fetch(KEY, tmp_path / "copy", MANY)
    assert not (tmp_path / "copy").exists()


async def test_a_server_that_is_gone_says_so_in_time(client: S3Client, unused_port: int, tmp_path: Path) -> None:
    async with open_s3(AwsSettings(endpoint_url=f"http://127.0.0.1:{unused_port}", region=REGION)) as nobody:
        inputs = store(nobody)
        began = time.monotonic()
        outcomes = await asyncio.gather(
            inputs.start(),
            inputs.head(KEY),
            inputs.fetch(KEY, tmp_path / "copy", MANY),
            put(inputs, b"one"),
            put(inputs, bytes(9_000_000)),
            inputs.delete(KEY),
            inputs.ping(),
            return_exceptions=True,
        )
        assert {type(each) for each in outcomes} == {DependencyUnavailable}
        assert time.monotonic() - began < 60


async def test_a_bucket_that_is_gone_is_not_a_missing_input(inputs: S3Inputs, client: S3Client, tmp_path: Path) -> None:
    await client.delete_bucket(Bucket=BUCKET)
    for doing in (inputs.head(KEY), inputs.fetch(KEY, tmp_path / "copy", MANY), inputs.ping()):
        with pytest.raises(DependencyUnavailable):
            await doing
