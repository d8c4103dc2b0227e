"""Composition root: build the workspace and the query executor from the settings.

Outside `service`, only this module imports `catalog`, `storage` and `engines`.
"""

from penstock.catalog import migrate
from penstock.catalog.database import Database
from penstock.config import Settings
from penstock.core.dataset.edit_policy import EditPolicy
from penstock.service.memory_budget import MemoryBudget
from penstock.service.queries import sandbox
from penstock.service.queries.execution import QueryExecutor
from penstock.service.workspace import SparkConfig, Workspace, WriteLimits
from penstock.storage.data_files import FileSizing
from penstock.storage.local_store import LocalStore
from penstock.workspace_folder import WorkspaceFolder, load_workspace_folder


def build_workspace(settings: Settings, folder: WorkspaceFolder) -> Workspace:
    """Connect the catalog and the file store of a workspace, without a check of the catalog's revision."""
    return Workspace(
        Database(
            settings.database_url or folder.catalog,
            durable=settings.durable,
            statement_seconds=settings.catalog_seconds,
        ),
        LocalStore(folder.folder, durable=settings.durable),
        FileSizing(file_bytes=settings.file_bytes, group_rows=settings.group_rows),
        WriteLimits(write_bytes=settings.write_bytes, batch_bytes=settings.batch_bytes),
        SparkConfig(settings.spark_master, settings.spark_conf or {}),
        EditPolicy(
            settings.edit_mode,
            max_vector_bytes=settings.deletion_vector_bytes,
            max_deleted_percent=settings.deletion_vector_percent,
        ),
        MemoryBudget(settings.request_memory),
    )


def open_workspace(settings: Settings, folder: WorkspaceFolder, *, create: bool = False) -> Workspace:
    """Build a workspace and check that its catalog has the current revision.

    Args:
        settings: database, file sizes, limits and Spark
        folder: the workspace folder
        create: create or upgrade the catalog's tables first

    Raises:
        Unsupported: the catalog has another revision than this version of Penstock needs
    """
    workspace = build_workspace(settings, folder)
    try:
        if create:
            migrate.migrate(workspace.db)
        migrate.assert_current(workspace.db)
    except BaseException:
        workspace.db.close()
        raise
    return workspace


def migrate_catalog(settings: Settings) -> tuple[str | None, str]:
    """Upgrade the catalog's tables as their owner.

    Returns:
        the revisions before and after
    """
    url = settings.admin_database_url or settings.database_url
    db = Database(url or load_workspace_folder(settings.workspace).catalog)
    try:
        return migrate.migrate(db)
    finally:
        db.close()


def build_query_executor(settings: Settings, workspace: Workspace) -> QueryExecutor:
    """Create the executor of registered queries with the limits of the settings.

    The first query starts the sandbox processes.
    """
    limits = sandbox.QueryLimits(
        seconds=settings.query_seconds,
        cpu_seconds=settings.query_cpu_seconds,
        memory_bytes=settings.query_memory,
        threads=settings.query_threads,
        rows=settings.query_rows,
        bytes=settings.query_bytes,
    )
    processes = sandbox.Sandbox(workspace.data, limits, max_running=settings.queries_at_once)
    return QueryExecutor(workspace, processes, settings.query_cache_bytes)


def start_spark() -> str:
    """Start a Spark session unless one is active.

    Returns:
        the version of Spark

    Raises:
        Unsupported: PySpark or Java is not installed
    """
    from penstock.engines.spark.session import get_or_start_session

    version: str = get_or_start_session().version
    return version
