"""Files of tenants, and the storage limit of each tenant."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import ColumnElement, Integer, bindparam, case, delete, func, select, update

from pyoco_server.core.priced.instants import SECOND_US
from pyoco_server.core.priced.upload import PENDING_SECONDS, ROOM_BYTES_MIN, NewUpload, Upload, room_of
from pyoco_server.ports.ledger.dialect import Sql
from pyoco_server.ports.ledger.port import StorageFull
from pyoco_server.ports.ledger.schema import tenants, uploads
from pyoco_server.ports.ledger.tenants import SqlTenants

__all__ = ["SqlUploads"]

_U = uploads.c
#: An existing upload can replace a new one if at least half of its retention is left.
_HALF: Final = 2
#: SQL equivalent of `room_of(size_bytes)`.
_ROOM: ColumnElement[int] = case((_U.size_bytes < ROOM_BYTES_MIN, ROOM_BYTES_MIN), else_=_U.size_bytes)


class SqlUploads:
    """See `port.Uploads`. Files are few and large compared to runs, so statements are not kept."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def reserve(self, ask: NewUpload, tenant_bytes_max: int) -> Upload | StorageFull:
        self._lock(ask.tenant_id)
        used, first = self._used(ask.tenant_id)
        if used + room_of(ask.size_bytes) > tenant_bytes_max:
            return StorageFull(used_bytes=used, first_expires_at=first)
        seconds = min(PENDING_SECONDS, self._sql.spans.retention_seconds)
        row = self._sql.connection.execute(
            uploads.insert()
            .values(
                upload_id=ask.upload_id,
                tenant_id=ask.tenant_id,
                key=ask.key,
                sha256=ask.sha256,
                size_bytes=ask.size_bytes,
                content_type=ask.content_type,
                created_at=self._sql.now(),
                expires_at=self._sql.ahead(seconds),
            )
            .returning(*uploads.columns)
        ).one()
        return _upload(row)

    def confirm(self, upload_id: str, tenant_id: str) -> Upload | None:
        self._lock(tenant_id)
        pending = self._sql.connection.execute(select(uploads).where(_U.upload_id == upload_id)).first()
        if pending is None:
            return None
        if pending.stored:
            return _upload(pending)
        other = self.find(tenant_id, pending.sha256)
        if other is not None:
            self.lose(upload_id)
            return other
        row = self._sql.connection.execute(
            update(uploads)
            # An abandoned upload has size 0. An expired upload stays expired: a sweeper may already be removing it.
            .where(_U.upload_id == upload_id, _U.size_bytes > 0, _U.expires_at > self._sql.now())
            # Measured from before the bytes were stored: the object store's own retention cannot end earlier than this.
            .values(stored=1, expires_at=pending.created_at + self._sql.spans.retention_seconds * SECOND_US)
            .returning(*uploads.columns)
        ).first()
        return None if row is None else _upload(row)

    def abandon(self, upload_id: str) -> None:
        self._sql.connection.execute(
            update(uploads).where(_U.upload_id == upload_id, _U.stored == 0).values(size_bytes=0)
        )

    def find(self, tenant_id: str, sha256: str) -> Upload | None:
        row = self._sql.connection.execute(
            select(uploads)
            .where(_U.tenant_id == tenant_id, _U.sha256 == sha256, _U.stored == 1)
            .where(_U.expires_at > self._sql.ahead(-(-self._sql.spans.retention_seconds // _HALF)))
            .order_by(_U.expires_at.desc())
            .limit(1)
        ).first()
        return None if row is None else _upload(row)

    def lose(self, upload_id: str) -> None:
        self._sql.connection.execute(
            update(uploads).where(_U.upload_id == upload_id).values(size_bytes=0, expires_at=self._sql.now())
        )

    def used_bytes(self, tenant_id: str) -> int:
        return self._used(tenant_id)[0]

    def expired(self, limit: int) -> list[Upload]:
        rows = self._sql.connection.execute(
            select(uploads)
            .where(_U.expires_at <= self._sql.now_us())  # a clock evaluated per row would scan all rows
            .order_by(_U.expires_at)
            .limit(bindparam(None, limit, type_=Integer()))
        )
        return [_upload(row) for row in rows]

    def defer(self, upload_id: str) -> None:
        now = self._sql.now()
        self._sql.connection.execute(
            update(uploads).where(_U.upload_id == upload_id, _U.expires_at <= now).values(expires_at=now)
        )

    def remove(self, upload_id: str) -> bool:
        deleted = self._sql.connection.execute(
            delete(uploads).where(_U.upload_id == upload_id, _U.expires_at <= self._sql.now())
        )
        return bool(deleted.rowcount == 1)

    def _lock(self, tenant_id: str) -> None:
        """Serialize per tenant. Does not block transactions that only reference the tenant in another row, such as
        runs."""
        SqlTenants(self._sql).add(tenant_id)
        if self._sql.is_postgres:
            chosen = select(tenants.c.tenant_id).where(tenants.c.tenant_id == tenant_id)
            self._sql.connection.execute(chosen.with_for_update(key_share=True))

    def _used(self, tenant_id: str) -> tuple[int, int | None]:
        row = self._sql.connection.execute(
            select(func.coalesce(func.sum(_ROOM), 0), func.min(_U.expires_at)).where(
                # A clock evaluated per row would also scan expired rows.
                _U.tenant_id == tenant_id,
                _U.expires_at > self._sql.now_us(),
                _U.size_bytes > 0,
            )
        ).one()
        return int(row[0]), row[1]


def _upload(row: Any) -> Upload:
    return Upload(
        upload_id=row.upload_id,
        tenant_id=row.tenant_id,
        key=row.key,
        sha256=row.sha256,
        size_bytes=row.size_bytes,
        content_type=row.content_type,
        created_at=row.created_at,
        expires_at=row.expires_at,
    )
