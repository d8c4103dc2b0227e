"""The folder of a workspace and the file `penstock.json` that marks it."""

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

from penstock.core.workspace_layout import CATALOG_FILE, WORKSPACE_FILE
from penstock.errors import Invalid, NotFound, Unsupported

_FORMAT = 1
_BUCKET_FORMAT = 2  # of a workspace with a bucket, which versions before 2 would overlook


@dataclass(frozen=True, slots=True)
class WorkspaceFolder:
    """A workspace folder: the root of its files, and the tenant of the local command line and Python API."""

    folder: Path
    tenant: UUID
    store: str | None = None  # URL of the bucket with the data files; None: they are in the folder

    @property
    def catalog(self) -> Path:
        """Path of the SQLite catalog, used when no database URL is set."""
        return self.folder / CATALOG_FILE


def load_workspace_folder(folder: Path) -> WorkspaceFolder:
    """Read the workspace file of a folder.

    Raises:
        NotFound: the folder has no workspace file
        Unsupported: a newer version of Penstock wrote the workspace file
        Invalid: the workspace file cannot be read
    """
    folder = folder.expanduser().absolute()
    try:
        stored = json.loads((folder / WORKSPACE_FILE).read_text("utf-8"))
        if stored["format"] > _BUCKET_FORMAT:
            raise Unsupported("newer_workspace", {"folder": folder, "format": stored["format"]})
        return WorkspaceFolder(folder, UUID(stored["tenant"]), stored.get("store"))
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound("workspace_not_found", {"folder": folder}) from None
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise Invalid("broken_workspace", {"file": folder / WORKSPACE_FILE, "cause": cause}) from None


def is_workspace_folder(folder: Path) -> bool:
    """Return whether the folder has a workspace file."""
    return (folder.expanduser().absolute() / WORKSPACE_FILE).exists()


def create_workspace_folder(folder: Path, tenant: UUID | None = None, *, store: str | None = None) -> WorkspaceFolder:
    """Create the folder and its workspace file. An existing workspace stays unchanged.

    Args:
        folder: the folder; missing parents are created
        tenant: the tenant of the local command line and Python API; a new id unless given
        store: URL of the bucket with the data files, without credentials; None: they are in the folder

    Raises:
        Invalid: the folder or its workspace file cannot be created
    """
    folder = folder.expanduser().absolute()
    if (folder / WORKSPACE_FILE).exists():
        return load_workspace_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_workspace_file(folder, tenant or uuid4(), store)
        for directory in (folder, folder.parent):
            handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(handle)
            os.close(handle)
    except OSError as cause:
        raise Invalid("workspace_not_created", {"folder": folder, "strerror": cause.strerror}) from None
    return load_workspace_folder(folder)


def _write_workspace_file(folder: Path, tenant: UUID, store: str | None) -> None:
    stored = {"format": _FORMAT, "tenant": str(tenant), "created_at": datetime.now(UTC).isoformat()}
    if store:
        stored |= {"format": _BUCKET_FORMAT, "store": store}
    draft = folder / f".{WORKSPACE_FILE}.{uuid4().hex}"
    with draft.open("x", encoding="utf-8") as file:
        file.write(json.dumps(stored, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, folder / WORKSPACE_FILE)  # of several processes, the first to link sets the tenant
    except FileExistsError:
        pass
    finally:
        draft.unlink()
