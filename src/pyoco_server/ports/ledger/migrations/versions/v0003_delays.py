"""Runs that must not start before a time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from pyoco_server.ports.ledger.types import InstantColumn

__all__ = ["branch_labels", "depends_on", "down_revision", "downgrade", "revision", "upgrade"]

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("not_before", InstantColumn))


def downgrade() -> None:
    op.drop_column("runs", "not_before")
