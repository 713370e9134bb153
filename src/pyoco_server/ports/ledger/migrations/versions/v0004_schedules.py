"""Runs that are for a tick of a schedule."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from pyoco_server.ports.ledger.types import Json

__all__ = ["branch_labels", "depends_on", "down_revision", "downgrade", "revision", "upgrade"]

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("schedule_json", Json))


def downgrade() -> None:
    op.drop_column("runs", "schedule_json")
