"""Names of the files and folders of a workspace."""

from uuid import UUID

from penstock.core.caller import Caller

WORKSPACE_FILE = "penstock.json"  # marks a folder as a workspace
CATALOG_FILE = "catalog.db"  # SQLite catalog, used when no database URL is set
DATA_FOLDER = "data"  # holds the data files of all tenants
CACHE_FOLDER = "cache"  # holds copies of a bucket's files, unless a setting names another folder
SCRATCH_FOLDER = "scratch"  # holds temporary files of engines


def tenant_folder(caller: Caller) -> str:
    """Return the folder of all data files of the caller's tenant, relative to the workspace."""
    return f"{DATA_FOLDER}/{caller.tenant}"


def scratch_folder(caller: Caller) -> str:
    """Return the folder of the temporary files of the caller's tenant, relative to the workspace."""
    return f"{SCRATCH_FOLDER}/{caller.tenant}"


def dataset_folder(caller: Caller, dataset: UUID) -> str:
    """Return the folder of a dataset's data files, relative to the workspace."""
    return f"{tenant_folder(caller)}/{dataset}"
