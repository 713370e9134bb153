"""Results in S3, opened by presigned URLs."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from pyoco_server.errors import DependencyUnavailable, SettingError
from pyoco_server.logs import get_logger
from pyoco_server.ports.aws.bucket import BUCKET_NAME, MISSING, OwnBucket, days_of
from pyoco_server.ports.aws.client import aws_errors, code_of
from pyoco_server.ports.results.port import EXISTS_DIFFERENT, ExistsDifferent, ResultHead

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client
    from types_aiobotocore_s3.type_defs import (
        GetObjectOutputTypeDef,
        HeadObjectOutputTypeDef,
    )

__all__ = ["S3Results"]

log = get_logger(__name__)

_URL = re.compile(rf"s3://(?P<bucket>{BUCKET_NAME.pattern})(/(?P<prefix>[A-Za-z0-9_./-]*))?")
_SHA256 = "sha256"
_RULE = "pyoco-results"
_DAY = 86_400
#: The maximum lifetime of a presigned URL.
_SIGNED_SECONDS_MAX = 7 * _DAY
#: Enough for one object with its bytes over a slow connection.
_TRANSFER_SECONDS = 20.0
_TAKEN = frozenset({"412", "PreconditionFailed"})


class S3Results:
    def __init__(self, s3: S3Client, url: str, region: str, retention_seconds: int) -> None:
        """`url` is `s3://bucket` or `s3://bucket/prefix`. Raises SettingError."""
        parts = _URL.fullmatch(url)
        if parts is None:
            raise SettingError(
                f"PYOCO_RESULTS_URL={url!r} names no bucket; example: PYOCO_RESULTS_URL=s3://dpp-results"
            )
        self._s3 = s3
        self.bucket = parts["bucket"]
        prefix = (parts["prefix"] or "").strip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._own = OwnBucket(
            s3=s3, name=self.bucket, region=region, rule=_RULE, prefix=self._prefix, days=days_of(retention_seconds)
        )

    async def start(self) -> None:
        await self._own.ensure()

    async def close(self) -> None:
        """Do nothing: another component owns the client."""

    async def put(
        self, key: str, data: bytes, content_type: str, sha256: str, metadata: Mapping[str, str]
    ) -> ResultHead | ExistsDifferent:
        """Check for an existing object first: some stores ignore the condition, and would overwrite it."""
        digest = hashlib.sha256(data)
        if digest.hexdigest() != sha256:
            raise ValueError("the digest is not that of the bytes")
        async with aws_errors("store a result", _TRANSFER_SECONDS):
            found = await self._head(key)
            if found is None:
                try:
                    await self._s3.put_object(
                        Bucket=self.bucket,
                        Key=self._prefix + key,
                        Body=data,
                        ContentType=content_type,
                        Metadata={**metadata, _SHA256: sha256},
                        ChecksumSHA256=base64.b64encode(digest.digest()).decode(),
                        IfNoneMatch="*",
                    )
                    return ResultHead(sha256, len(data), content_type, dict(metadata))
                except ClientError as error:
                    if code_of(error) not in _TAKEN:
                        raise
                found = await self._head(key)
        if found is None:
            raise DependencyUnavailable("cannot store a result: it is there, and then it is not")
        return found if found.sha256 == sha256 else EXISTS_DIFFERENT

    async def head(self, key: str) -> ResultHead | None:
        """Return the description of a result. None: it does not exist.

        A HEAD does not distinguish a missing key from a missing bucket, so the bucket is checked too (PRICED-211).
        """
        async with aws_errors("look for a result"):
            found = await self._head(key)
            if found is None:
                await self._s3.head_bucket(Bucket=self.bucket)
        return found

    async def get(self, key: str) -> tuple[bytes, ResultHead] | None:
        async with aws_errors("read a result", _TRANSFER_SECONDS):
            try:
                answer = await self._s3.get_object(Bucket=self.bucket, Key=self._prefix + key)
            except ClientError as error:
                if code_of(error) == "NoSuchKey":
                    return None
                raise
            async with answer["Body"] as body:
                data = await body.read()
        head = _read_head(answer)
        if hashlib.sha256(data).hexdigest() != head.sha256:
            log.error("damaged result in S3", bucket=self.bucket)
            raise DependencyUnavailable("cannot read a result: its bytes do not match its digest")
        return data, head

    async def signed_url(self, key: str, expires_at: int) -> str:
        """Presign a URL, without a request to S3. S3 refuses one whose time has passed, as it should.

        The URL expires with the credentials that signed it, too: those of a role last only hours.
        """
        where = {"Bucket": self.bucket, "Key": self._prefix + key}
        async with aws_errors("sign the address of a result"):
            while True:
                now = int(time.time())
                seconds = max(0, min(expires_at - now, _SIGNED_SECONDS_MAX))
                url = await self._s3.generate_presigned_url("get_object", Params=where, ExpiresIn=seconds)
                if int(time.time()) == now:  # otherwise the lifetime may count from a later second
                    return url

    def opens(self, token: str, now: int) -> str | None:
        """Return None: S3 checks its URLs itself."""
        return None

    async def ping(self) -> None:
        async with aws_errors("reach the store of results"):
            await self._s3.head_bucket(Bucket=self.bucket)

    async def _head(self, key: str) -> ResultHead | None:
        try:
            return _read_head(await self._s3.head_object(Bucket=self.bucket, Key=self._prefix + key))
        except ClientError as error:
            if code_of(error) in MISSING:
                return None
            raise


def _read_head(answer: HeadObjectOutputTypeDef | GetObjectOutputTypeDef) -> ResultHead:
    metadata = dict(answer["Metadata"])
    return ResultHead(metadata.pop(_SHA256, ""), answer["ContentLength"], answer["ContentType"], metadata)
