"""Files that tenants upload for their packs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from pyoco_server.ports.ledger.types import BigInt, InstantColumn, RunId, SmallInt

__all__ = ["branch_labels", "depends_on", "down_revision", "downgrade", "revision", "upgrade"]

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "uploads",
        sa.Column("upload_id", RunId, primary_key=True),
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.tenant_id"), nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("size_bytes", BigInt, nullable=False),
        sa.Column("content_type", sa.Text, nullable=False),
        sa.Column("stored", SmallInt, nullable=False, server_default=sa.text("0")),
        sa.Column("created_at", InstantColumn, nullable=False),
        sa.Column("expires_at", InstantColumn, nullable=False),
        sa.CheckConstraint("size_bytes >= 0", name="ck_uploads_size"),
        sa.CheckConstraint("stored IN (0, 1)", name="ck_uploads_stored"),
        sqlite_strict=True,
    )
    op.create_index("idx_uploads_tenant", "uploads", ["tenant_id", "expires_at", "size_bytes"])
    op.create_index("idx_uploads_digest", "uploads", ["tenant_id", "sha256"])
    op.create_index("idx_uploads_expires", "uploads", ["expires_at"])


def downgrade() -> None:
    op.drop_table("uploads")
