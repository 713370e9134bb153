"""Inputs in S3."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from pyoco_server.config import PricedConfig
from pyoco_server.errors import DependencyUnavailable, SettingError, TooLarge
from pyoco_server.logs import get_logger
from pyoco_server.ports.aws.bucket import BUCKET_NAME, MISSING, OwnBucket, days_of
from pyoco_server.ports.aws.client import aws_errors, code_of
from pyoco_server.ports.inputs.landing import Landing
from pyoco_server.ports.inputs.port import ANY_TYPE, InputHead

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client
    from types_aiobotocore_s3.type_defs import CompletedPartTypeDef, GetObjectOutputTypeDef, HeadObjectOutputTypeDef

__all__ = ["S3Inputs"]

log = get_logger(__name__)

_SHA256 = "sha256"
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_RULE = "pyoco-inputs"
#: Size of a part in memory. S3 requires at least 5 MiB for all parts but the last, and allows 10,000 parts.
_PART_BYTES = 8 * 1024 * 1024
_PARTS_MAX = 10_000
_READ_BYTES = 256 * 1024
#: Enough for one part over a slow connection.
_TRANSFER_SECONDS = 30.0


class S3Inputs:
    """Uploads a file of one part in one request, a larger one as a multipart upload, which becomes visible as a
    whole."""

    def __init__(self, s3: S3Client, config: PricedConfig, region: str) -> None:
        """Raises SettingError if the name is not valid for an S3 bucket."""
        self.bucket = config.pack_input_bucket
        if not BUCKET_NAME.fullmatch(self.bucket):
            raise SettingError(
                f"PYOCO_PACK_INPUT_BUCKET={self.bucket!r} is no name of a bucket in S3: 3 to 63 small letters, digits "
                "and '-'; example: PYOCO_PACK_INPUT_BUCKET=dpp-inputs"
            )
        self._s3 = s3
        days = days_of(config.priced_retention_sec)
        self._own = OwnBucket(s3=s3, name=self.bucket, region=region, rule=_RULE, prefix="dpp/", days=days)

    async def start(self) -> None:
        await self._own.ensure()

    async def close(self) -> None:
        """Do nothing: another component owns the client."""

    async def put(self, key: str, data: AsyncIterator[bytes], size: int, content_type: str, sha256: str) -> None:
        about: Any = {"ContentType": content_type, "Metadata": {_SHA256: sha256}}
        parts = _Parts(data, size, sha256, max(_PART_BYTES, -(-size // _PARTS_MAX)))
        if size <= _PART_BYTES:
            body = b"".join([part async for part in parts])
            checksum = base64.b64encode(bytes.fromhex(sha256)).decode()
            async with aws_errors("store an input", _TRANSFER_SECONDS):
                await self._s3.put_object(Bucket=self.bucket, Key=key, Body=body, ChecksumSHA256=checksum, **about)
            return
        async with aws_errors("begin to store an input"):
            begun = await self._s3.create_multipart_upload(Bucket=self.bucket, Key=key, **about)
        where: Any = {"Bucket": self.bucket, "Key": key, "UploadId": begun["UploadId"]}
        try:
            stored = await self._put_parts(where, parts)
            async with aws_errors("store an input", _TRANSFER_SECONDS):
                await self._s3.complete_multipart_upload(MultipartUpload={"Parts": stored}, **where)
        except BaseException:
            await self._abort(where)
            raise

    async def _put_parts(self, where: dict[str, Any], parts: _Parts) -> list[CompletedPartTypeDef]:
        stored: list[CompletedPartTypeDef] = []
        async for part in parts:
            number = len(stored) + 1
            async with aws_errors("store a part of an input", _TRANSFER_SECONDS):
                answer = await self._s3.upload_part(Body=part, PartNumber=number, **where)
            stored.append({"PartNumber": number, "ETag": answer["ETag"]})
        return stored

    async def _abort(self, where: dict[str, Any]) -> None:
        """Best effort: the bucket's lifecycle rule removes incomplete uploads."""
        with contextlib.suppress(DependencyUnavailable):
            async with aws_errors("give up an input"):
                await self._s3.abort_multipart_upload(**where)

    async def head(self, key: str) -> InputHead | None:
        """Return size and type of a file. None: it does not exist.

        A HEAD does not distinguish a missing key from a missing bucket, so the bucket is checked too: a missing bucket
        raises DependencyUnavailable.
        """
        async with aws_errors("look for an input"):
            try:
                return _head(await self._s3.head_object(Bucket=self.bucket, Key=key))
            except ClientError as error:
                if code_of(error) not in MISSING:
                    raise
            await self._s3.head_bucket(Bucket=self.bucket)
        return None

    async def fetch(self, key: str, into: Path, bytes_max: int) -> InputHead | None:
        async with aws_errors("read an input"):
            try:
                answer = await self._s3.get_object(Bucket=self.bucket, Key=key)
            except ClientError as error:
                if code_of(error) == "NoSuchKey":
                    return None
                raise
        head = _head(answer)
        async with answer["Body"] as body:
            if head.size_bytes > bytes_max:
                body.close()  # read no more of it
                raise TooLarge(f"the file has {head.size_bytes} bytes, and may have {bytes_max}")
            async with Landing(into, bytes_max) as landing:
                while chunk := await self._read(body):
                    await landing.write(chunk)
                if landing.size_bytes != head.size_bytes:
                    raise DependencyUnavailable("cannot read an input: its end is missing")
                await landing.finish(head.sha256)
        return head

    async def _read(self, body: Any) -> bytes:
        async with aws_errors("read an input", _TRANSFER_SECONDS):
            data: bytes = await body.read(_READ_BYTES)
            return data

    async def delete(self, key: str) -> None:
        async with aws_errors("delete an input"):
            await self._s3.delete_object(Bucket=self.bucket, Key=key)

    async def ping(self) -> None:
        async with aws_errors("reach the store of inputs"):
            await self._s3.head_bucket(Bucket=self.bucket)


class _Parts:
    """Splits the bytes into parts of equal size; the last one may be smaller.

    The last part is yielded only after size and digest have been verified; otherwise raises ValueError.
    """

    def __init__(self, data: AsyncIterator[bytes], size: int, sha256: str, part_bytes: int) -> None:
        self._data, self._size, self._sha256, self._part_bytes = data, size, sha256, part_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        digest, count, waiting = hashlib.sha256(), 0, bytearray()
        async for chunk in self._data:
            await asyncio.to_thread(digest.update, chunk)
            count += len(chunk)
            if count > self._size:
                break
            waiting += chunk
            while len(waiting) > self._part_bytes:
                yield bytes(waiting[: self._part_bytes])
                del waiting[: self._part_bytes]
        if count != self._size or digest.hexdigest() != self._sha256:
            raise ValueError("the bytes are not those of the size and the digest")
        yield bytes(waiting)


def _head(answer: HeadObjectOutputTypeDef | GetObjectOutputTypeDef) -> InputHead:
    digest = answer["Metadata"].get(_SHA256, "")
    sha256 = digest if _DIGEST.fullmatch(digest) else None
    return InputHead(answer["ContentLength"], answer.get("ContentType") or ANY_TYPE, sha256)
