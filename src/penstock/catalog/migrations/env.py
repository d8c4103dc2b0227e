"""Run the migrations on the connection that `migrate.migrate` passes."""

from alembic import context

from penstock.catalog.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
