"""An S3 bucket that we own: created if missing, public access blocked, old objects expired."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from pyoco_server.core.priced.constants import MULTIPART_ABORT_DAYS
from pyoco_server.logs import get_logger
from pyoco_server.ports.aws.client import ANSWER_SECONDS, aws_errors, code_of

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client
    from types_aiobotocore_s3.type_defs import PublicAccessBlockConfigurationTypeDef

__all__ = ["BUCKET_NAME", "MISSING", "OwnBucket", "days_of"]

log = get_logger(__name__)

BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
#: The error codes of S3 for a missing object.
MISSING = frozenset({"404", "NoSuchKey", "NotFound"})

_DAY = 86_400
_UNSET = frozenset({"NoSuchLifecycleConfiguration", "NoSuchPublicAccessBlockConfiguration"})
#: The store does not support the operation, or another party administers the bucket.
_NOT_OURS = frozenset({"403", "AccessDenied", "MethodNotAllowed", "NotImplemented"})


def days_of(seconds: int) -> int:
    """Convert seconds to days, the unit of S3, rounded up."""
    return max(1, -(-seconds // _DAY))


@dataclass(frozen=True, kw_only=True)
class OwnBucket:
    """The desired state of one of our buckets."""

    s3: S3Client
    name: str
    region: str
    #: The id of its lifecycle rule, which no one else uses.
    rule: str
    #: Objects below this prefix expire.
    prefix: str
    #: Days until they expire.
    days: int

    async def ensure(self) -> None:
        """Create or update the bucket. Idempotent. Raises DependencyUnavailable."""
        async with aws_errors(f"make the bucket {self.name}", 4 * ANSWER_SECONDS):
            await self._ensure_bucket()
            await self._if_we_may("access block", self._ensure_closed)
            await self._if_we_may("lifecycle", self._ensure_expiry)

    async def _ensure_bucket(self) -> None:
        try:
            await self.s3.head_bucket(Bucket=self.name)
        except ClientError as error:
            if code_of(error) not in {"404", "NoSuchBucket"}:
                raise
        else:
            return
        # us-east-1 must not be named as a location constraint.
        where: dict[str, Any] = {"CreateBucketConfiguration": {"LocationConstraint": self.region}}
        try:
            await self.s3.create_bucket(Bucket=self.name, **(where if self.region != "us-east-1" else {}))
            log.info("bucket created", bucket=self.name)
        except ClientError as error:
            if code_of(error) != "BucketAlreadyOwnedByYou":  # another process of ours may just have created it
                raise

    async def _ensure_closed(self) -> None:
        """Block all public access (PRICED-213)."""
        wanted: PublicAccessBlockConfigurationTypeDef = {
            "BlockPublicAcls": True,
            "IgnorePublicAcls": True,
            "BlockPublicPolicy": True,
            "RestrictPublicBuckets": True,
        }
        try:
            found = await self.s3.get_public_access_block(Bucket=self.name)
            if found["PublicAccessBlockConfiguration"] == wanted:
                return
        except ClientError as error:
            if code_of(error) not in _UNSET:
                raise
        await self.s3.put_public_access_block(Bucket=self.name, PublicAccessBlockConfiguration=wanted)

    async def _ensure_expiry(self) -> None:
        """Write our lifecycle rule (PRICED-214), and keep the rules of others.

        The expiry of our rule is never shortened: that would delete objects that were promised for longer (PRICED-167).
        """
        rules: list[Any] = []
        try:
            rules = list((await self.s3.get_bucket_lifecycle_configuration(Bucket=self.name))["Rules"])
        except ClientError as error:
            if code_of(error) not in _UNSET:
                raise
        ours = [rule for rule in rules if rule.get("ID") == self.rule]
        others = [rule for rule in rules if rule not in ours]
        days = max([self.days, *(rule.get("Expiration", {}).get("Days", 0) for rule in ours)])
        wanted: Any = {
            "ID": self.rule,
            "Status": "Enabled",
            "Filter": {"Prefix": self.prefix},
            "Expiration": {"Days": days},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": MULTIPART_ABORT_DAYS},
        }
        if wanted in rules:
            return
        await self.s3.put_bucket_lifecycle_configuration(
            Bucket=self.name, LifecycleConfiguration={"Rules": [*others, wanted]}
        )

    async def _if_we_may(self, what: str, ensure: Callable[[], Awaitable[None]]) -> None:
        """Apply a setting; log a warning if we lack the permission, because the bucket is usable without it."""
        try:
            await ensure()
        except ClientError as error:
            if code_of(error) not in _NOT_OURS:
                raise
            log.warning("cannot change bucket setting, left as it is", bucket=self.name, what=what, code=code_of(error))
