"""The opened workspace: catalog, file store, file sizes and limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.catalog.database import Database
from penstock.core.caller import Caller
from penstock.core.dataset.edit_policy import EditPolicy
from penstock.core.workspace_layout import DATA_FOLDER
from penstock.service.memory_budget import MemoryBudget
from penstock.service.store_probe import StoreProbe
from penstock.service.writer_leases import WriterLeases
from penstock.storage.data_files import FileSizing
from penstock.storage.file_store import FileStore
from penstock.storage.tenant_store import TenantStore


@dataclass(frozen=True, slots=True)
class WriteLimits:
    """Limits of one write."""

    write_bytes: int = 1 << 40  # uncompressed rows of one write
    batch_bytes: int = 1 << 30  # uncompressed rows of one batch
    row_bytes: int = 64 << 20  # average row of a batch
    returned_bytes: int = 64 << 20  # rows that a write returns


@dataclass(frozen=True, slots=True)
class SparkConfig:
    """Master and configuration of the Spark session that Penstock starts."""

    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Workspace:
    """The catalog and the file store of a workspace, with their settings."""

    db: Database
    store: FileStore
    file_sizing: FileSizing = field(default_factory=FileSizing)
    limits: WriteLimits = field(default_factory=WriteLimits)
    cluster: SparkConfig = field(default_factory=SparkConfig)
    edit_policy: EditPolicy = field(default_factory=EditPolicy)
    memory: MemoryBudget = field(default_factory=MemoryBudget)  # of the requests of this process
    writers: "WriterLeases" = field(init=False)
    store_probe: "StoreProbe" = field(init=False)

    def __post_init__(self) -> None:
        self.writers = WriterLeases(self.db)
        self.store_probe = StoreProbe()

    def store_of(self, caller: Caller) -> FileStore:
        """Return the file store, limited to the paths of the caller's tenant."""
        return TenantStore(self.store, caller.tenant)

    @property
    def data(self) -> str:
        """Return the path of the folder with the data files of all datasets."""
        return self.store.locate(DATA_FOLDER)

    def close(self) -> None:
        """End the writer leases of this process and close the database connections."""
        try:
            self.writers.close()
        finally:
            self.store.close()
            self.db.close()
