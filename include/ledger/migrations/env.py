"""Alembic's entry: runs on the connection that `include.ledger.database.migrate` hands over."""

from alembic import context

from include.ledger.models import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata, compare_type=True)
with context.begin_transaction():
    context.run_migrations()
