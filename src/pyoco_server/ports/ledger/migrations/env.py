"""Run by Alembic: executes the migrations, on the connection and in the transaction that `migrate.py` provides."""

from __future__ import annotations

from alembic import context

# Batch mode: SQLite cannot alter a column, so Alembic recreates the table.
context.configure(connection=context.config.attributes["connection"], render_as_batch=True)
context.run_migrations()
