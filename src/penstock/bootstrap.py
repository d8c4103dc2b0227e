"""Composition root: open a workspace and build its query executor from the settings.

Outside `service`, only this module imports `catalog`, `storage` and `engines`.
"""

import getpass
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

from penstock.catalog import migrate, snapshots
from penstock.catalog.database import Database
from penstock.config import Settings
from penstock.core.caller import Caller, local_caller
from penstock.core.dataset.edit_policy import EditPolicy
from penstock.core.workspace_layout import CACHE_FOLDER, CATALOG_FILE, DATA_FOLDER, tenant_folder
from penstock.errors import AlreadyExists, Invalid
from penstock.service.memory_budget import MemoryBudget
from penstock.service.queries import sandbox
from penstock.service.queries.execution import QueryExecutor
from penstock.service.workspace import SparkConfig, Workspace, WriteLimits
from penstock.storage.data_files import FileSizing
from penstock.storage.file_cache import FileCache
from penstock.storage.file_store import FileStore
from penstock.storage.local_store import LocalStore
from penstock.storage.object_store import ObjectStore
from penstock.storage.store_url import StoreSettings, StoreUrl
from penstock.storage.workspace_marker import claim_store, find_marker
from penstock.workspace_folder import (
    WorkspaceFolder,
    create_workspace_folder,
    is_workspace_folder,
    load_workspace_folder,
)


@dataclass(frozen=True, slots=True)
class LocalSession:
    """An open workspace and the caller of this process: the arguments of the functions in `service`."""

    folder: WorkspaceFolder
    workspace: Workspace
    caller: Caller
    query_executor: QueryExecutor

    def close(self) -> None:
        """Stop the query processes, and disconnect from the catalog."""
        self.query_executor.close()
        self.workspace.close()

    def __enter__(self) -> "LocalSession":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_session(settings: Settings, *, create: bool = False, caller: Caller | None = None) -> LocalSession:
    """Open the workspace of the settings.

    Args:
        settings: all settings
        create: create the folder and the catalog if they do not exist, and upgrade the catalog's tables
        caller: by default an admin of the folder's tenant

    Raises:
        NotFound: the folder is not a workspace
        Unsupported: the catalog has another revision than this version of Penstock needs
    """
    folder = create_workspace(settings) if create else load_workspace_folder(settings.workspace)
    workspace = open_workspace(settings, folder, create=create)
    local = caller or local_caller(folder.tenant, _login_name())
    return LocalSession(folder, workspace, local, build_query_executor(settings, workspace))


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def build_workspace(settings: Settings, folder: WorkspaceFolder) -> Workspace:
    """Connect the catalog and the file store of a workspace, without a check of the catalog's revision."""
    return Workspace(
        Database(
            settings.database_url or folder.catalog,
            durable=settings.durable,
            statement_seconds=settings.catalog_seconds,
        ),
        build_store(settings, folder),
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


def build_store(settings: Settings, folder: WorkspaceFolder) -> FileStore:
    """Create the file store of a workspace: its folder, or a bucket. Sends no request.

    Raises:
        Invalid: the URL or an option of the bucket is not valid
    """
    url = settings.store or folder.store
    if url is None:
        if settings.store_options:
            raise Invalid("bad_store_options.no_url")
        return LocalStore(folder.folder, durable=settings.durable)
    return _build_object_store(settings, url, folder.folder)


def _build_object_store(settings: Settings, url: str, folder: Path) -> ObjectStore:
    store_settings = StoreSettings(
        StoreUrl.parse(url),
        settings.store_options or {},
        connect_seconds=settings.store_connect_seconds,
        read_seconds=settings.store_read_seconds,
        retries=settings.store_retries,
        retry_seconds=settings.store_retry_seconds,
    )
    return ObjectStore(store_settings, FileCache(settings.cache_dir or folder / CACHE_FOLDER, settings.cache_bytes))


def create_workspace(settings: Settings, tenant: UUID | None = None) -> WorkspaceFolder:
    """Create the workspace folder and, if the data files are in a bucket, the object that names the workspace there.

    An existing workspace stays unchanged. A new folder may join the workspace of a bucket: it gets the same tenant.

    Args:
        settings: the folder, the bucket and the database
        tenant: the tenant of the local command line and Python API; by default that of the bucket, else a new id

    Raises:
        AlreadyExists: the folder or the bucket belongs to another tenant
        Invalid: the folder has data files of its own, or the catalog is not that of the bucket
    """
    existing = load_workspace_folder(settings.workspace) if is_workspace_folder(settings.workspace) else None
    url = settings.store or (existing.store if existing else None)
    if url is None or (existing and existing.store == url):
        return existing or create_workspace_folder(settings.workspace, tenant)
    folder = settings.workspace.expanduser().absolute()
    has_files = existing and existing.store is None and any((folder / DATA_FOLDER).glob("*/*/*"))
    if has_files:
        raise Invalid("store_has_local_files", {"folder": folder})
    tenant = existing.tenant if existing else tenant
    store = _build_object_store(settings, url, folder)
    try:
        marker, is_new = claim_store(store, tenant or uuid4())
    finally:
        store.close()
    if tenant not in (None, marker.tenant):
        raise AlreadyExists("store_of_other_workspace", tenant=str(marker.tenant))
    if not (is_new or existing or settings.database_url or (folder / CATALOG_FILE).exists()):
        raise Invalid("store_needs_shared_catalog", tenant=str(marker.tenant))
    return existing or create_workspace_folder(folder, marker.tenant, store=str(StoreUrl.parse(url)))


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
        if isinstance(workspace.store, ObjectStore):
            _check_bucket(
                workspace, workspace.store, folder, is_recorded=settings.store in (None, folder.store), create=create
            )
    except BaseException:
        workspace.store.close()
        workspace.db.close()
        raise
    return workspace


def _check_bucket(
    workspace: Workspace, store: ObjectStore, folder: WorkspaceFolder, *, is_recorded: bool, create: bool
) -> None:
    """Check that a bucket belongs to the workspace. A bucket that `create_workspace` has recorded needs no request."""
    if not is_recorded and (marker := find_marker(store)).tenant != folder.tenant:
        raise AlreadyExists("store_of_other_workspace", tenant=str(marker.tenant))
    if create:
        caller = local_caller(folder.tenant, "penstock")
        with workspace.db.read(caller) as tx:
            is_empty = not snapshots.commit_no(tx)
        if is_empty and next(store.files(tenant_folder(caller)), None):
            raise Invalid("store_of_other_catalog", tenant=str(folder.tenant))


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
    processes = sandbox.Sandbox(
        workspace.data, limits, max_running=settings.queries_at_once, open_files=workspace.store.open_local
    )
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
