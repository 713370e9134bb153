"""What Alembic runs: the steps, on the connection and in the transaction that `migrate.py` brings."""

from __future__ import annotations

from alembic import context

# Batches: SQLite cannot change a column, and Alembic then makes the table anew.
context.configure(connection=context.config.attributes["connection"], render_as_batch=True)
context.run_migrations()
