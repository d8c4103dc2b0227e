"""Python API: open a workspace, read and write its datasets, run pipelines and queries."""

import getpass
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa

from penstock import bootstrap, config
from penstock.core.caller import Caller, local_caller
from penstock.core.names import DatasetName, parse_dataset_ref
from penstock.core.progress import ProgressCallback
from penstock.core.registry import gts
from penstock.errors import Invalid, PenstockError
from penstock.lake.dataset import Dataset, DatasetVersion
from penstock.lake.pipeline import Pipeline
from penstock.lake.query import Query, QueryResult
from penstock.lake.transaction import Transaction
from penstock.service.datasets import read, row_source, write
from penstock.service.pipelines import run_worker
from penstock.service.queries import definitions as query_definitions
from penstock.service.queries.execution import QueryExecutor
from penstock.service.registry import schemas
from penstock.service.workspace import Workspace
from penstock.workspace_folder import WorkspaceFolder, load_workspace_folder

__all__ = [
    "Dataset",
    "DatasetVersion",
    "Lake",
    "LakeSnapshot",
    "Pipeline",
    "Query",
    "QueryResult",
    "Transaction",
    "open",
]


def open(
    location: str | Path | None = None,
    *,
    create: bool = False,
    caller: Caller | None = None,
    settings: config.Settings | None = None,
) -> "Lake":
    """Open a workspace.

    Args:
        location: the workspace folder, or the URL of a shared catalog, whose files are in the folder
            `PENSTOCK_WORKSPACE`; by default both come from the settings
        create: create the folder and the catalog if they do not exist, and upgrade the catalog's tables
        caller: tenant, user and role of every call; by default an admin of the folder's tenant
        settings: the settings; by default read from the environment variables `PENSTOCK_*`

    Returns:
        the workspace's datasets; close it after use, or use it as a context manager

    Raises:
        NotFound: the folder is not a workspace
        Unsupported: the catalog has an older or newer revision; run `penstock migrate`
        Unavailable: the catalog cannot be reached

    Example:
        >>> import penstock
        >>> lake = penstock.open("workspace", create=True)
    """
    chosen = settings or config.load_settings()
    if isinstance(location, str) and "://" in location:
        chosen = replace(chosen, database_url=location)
    elif location is not None:
        chosen = replace(chosen, workspace=Path(location))
    folder = bootstrap.create_workspace(chosen) if create else load_workspace_folder(chosen.workspace)
    workspace = bootstrap.open_workspace(chosen, folder, create=create)
    executor = bootstrap.build_query_executor(chosen, workspace)
    return Lake(workspace, caller or local_caller(folder.tenant, _login_name()), folder, executor)


class Lake:
    """All datasets, queries and pipelines of one tenant in a workspace. `penstock.open` returns it.

    Attributes:
        caller: tenant, user and role of every call
    """

    def __init__(
        self,
        workspace: Workspace,
        caller: Caller,
        folder: WorkspaceFolder,
        query_executor: QueryExecutor | None = None,
    ) -> None:
        self.caller = caller
        self._workspace, self._folder = workspace, folder
        # Both start their threads and processes when they are first used.
        self._run_worker = run_worker.RunWorker(workspace, takes_queued_runs=False)
        self._query_executor = query_executor or QueryExecutor(workspace)

    def create(
        self,
        name: str,
        rows: Any = None,
        *,
        schema: pa.Schema | None = None,
        row_ids: bool = True,
        read_only: bool = False,
        cluster_by: str | Sequence[str] = (),
        idempotency_key: str | None = None,
        progress: ProgressCallback | None = None,
    ) -> "Dataset":
        """Create a dataset from rows, from a schema, or from both.

        Args:
            name: namespace and name, as in `finance.transactions`
            rows: a dict of columns, a list of dicts, an Arrow table, batch or reader, a pandas, Polars or Spark data
                frame, or the path of a Parquet, CSV, JSON lines or Arrow file
            schema: the columns; by default those of the rows
            row_ids: give every row a stable 64-bit id, which `Dataset.update` and `Dataset.delete` need
            read_only: reject every later write
            cluster_by: the columns, at most four, that `Dataset.compact` sorts the rows by, so that a search for their
                values reads few files
            idempotency_key: a repeated call with the same key and rows creates the dataset once
            progress: called with a `Progress` as rows are written; an exception stops the write

        Returns:
            the new dataset

        Raises:
            Invalid: the name, the schema, the cluster key or a row is invalid
            AlreadyExists: a dataset has this name, or another request used the key
            Forbidden: the caller's role is lower than developer

        Example:
            >>> people = lake.create("demo.people", {"id": [1, 2], "name": ["Ada", "Grace"]})
            >>> people.num_rows
            2
        """
        reader = None if rows is None else row_source.open_reader(rows)
        if schema is None and reader is None:
            raise Invalid("missing_schema.create", {"name": name})
        receipt = write.create(
            self._workspace,
            self.caller,
            DatasetName.parse(name),
            reader.schema if schema is None and reader is not None else schema,
            reader,
            row_ids=row_ids,
            read_only=read_only,
            cluster_by=cluster_by,
            key=idempotency_key,
            progress=progress,
        )
        return Dataset(self, receipt.written[0].dataset)

    def dataset(self, name: str | UUID) -> "Dataset":
        """Return the dataset with this name or id.

        Args:
            name: namespace and name, as in `finance.transactions`, or the id

        Raises:
            NotFound: no dataset has this name or id
            Invalid: the name is neither `namespace.name` nor an id

        Example:
            >>> lake.dataset("demo.people").version
            1
        """
        reference = name if isinstance(name, UUID) else parse_dataset_ref(name)
        return Dataset(self, read.find(self._workspace, self.caller, reference).dataset)

    def datasets(self) -> "list[DatasetVersion]":
        """List the current version of every dataset.

        Example:
            >>> [dataset.name for dataset in lake.datasets()]
            ['demo.people']
        """
        return [DatasetVersion(self, snapshot) for snapshot in read.list_all(self._workspace, self.caller)]

    def transaction(self, *, idempotency_key: str | None = None) -> "Transaction":
        """Begin writes to several datasets that are committed together.

        Args:
            idempotency_key: a repeated transaction with the same key and writes is committed once

        Returns:
            a context manager: it commits when the block ends, and discards all writes if the block raises

        Example:
            >>> with lake.transaction() as tx:
            ...     tx.append("demo.people", {"id": [3], "name": ["Edsger"]})
            >>> tx.receipt.version
            2
        """
        return Transaction(self, idempotency_key)

    def pipeline(self, definition: Mapping[str, Any] | str | Path) -> "Pipeline":
        """Return the pipeline of a definition. `Pipeline.validate` lists its errors; a run raises them.

        Args:
            definition: name, working dataset, operations and optionally an output dataset, or the path of a JSON or YAML
                file with them

        Raises:
            Invalid: the file cannot be read, or is not JSON or YAML

        Example:
            >>> newcomers = lake.create("demo.newcomers", {"id": [4, 5], "name": ["Barbara", "Alan"]})
            >>> pipeline = lake.pipeline({
            ...     "name": "add newcomers",
            ...     "working": {"dataset_id": str(people.id)},
            ...     "operations": [{"type": "append", "parameters": {"source": {"dataset_id": str(newcomers.id)}}}],
            ... })
        """
        return Pipeline(self, definition)

    def query(self, name: str | UUID) -> "Query":
        """Return the registered query with this name or id.

        Raises:
            NotFound: no registered query has this name or id
        """
        return Query(self, query_definitions.show(self._workspace, self.caller, str(name)).id)

    def register(
        self,
        name: str,
        sql: str,
        returns: UUID | Sequence[Mapping[str, Any]],
        parameters: Sequence[Mapping[str, Any]] = (),
    ) -> "Query":
        """Register a query and its result schema.

        Args:
            name: name of the query
            sql: one SELECT; parameters are written `$name`
            returns: the id of a result schema, or fields (`name`, `type`), from which a result schema with the
                query's name is created
            parameters: the parameters (`name`, `type`, `required`, `default`) of the SELECT

        Raises:
            Invalid: the SELECT, a field or a parameter is invalid
            AlreadyExists: a query or result schema has this name
            Unsupported: the columns of the SELECT can never match the result schema

        Example:
            >>> query = lake.register(
            ...     "names by length",
            ...     "SELECT name, length(name) AS letters FROM demo.people WHERE length(name) >= $min_letters",
            ...     [{"name": "name", "type": "string"}, {"name": "letters", "type": "number"}],
            ...     [{"name": "min_letters", "type": "number", "default": 0}],
            ... )
            >>> lake.query("names by length").id == query.id
            True
        """
        workspace, caller = self._workspace, self.caller
        if isinstance(returns, UUID):
            schema_id = str(returns)
        else:
            schema_payload = {"name": name, "type_id": gts.QUERY_RETURNS, "fields": returns}
            schema_id = str(schemas.create(workspace, caller, schema_payload).id)
        payload = {"name": name, "sql": sql, "returns_schema_id": schema_id, "parameters": list(parameters)}
        try:
            inspector = self._query_executor.inspector(caller)
            return Query(self, query_definitions.create(workspace, caller, payload, inspector).id)
        except PenstockError:
            if not isinstance(returns, UUID):  # no other caller has the new schema's id yet
                schemas.delete(workspace, caller, schema_id, None)
            raise

    def sql(self, sql: str, /, **parameters: Any) -> "QueryResult":
        """Run a SELECT that is not registered, and return its first 1,000 rows.

        The result is not validated, because it has no result schema.

        Args:
            sql: one SELECT; parameters are written `$name`
            parameters: values of the parameters

        Raises:
            Invalid: the SELECT is invalid, or reads something else than datasets
            NotFound: a dataset does not exist

        Example:
            >>> lake.sql("SELECT count(*) AS people FROM demo.people").rows
            [{'people': 3}]
        """
        return QueryResult(self._query_executor.preview(self.caller, sql, parameters))

    def snapshot(self, commit_no: int | None = None) -> "LakeSnapshot":
        """Return all datasets as of one commit.

        Args:
            commit_no: number of the commit; by default the latest one

        Raises:
            NotFound: the commit does not exist

        Example:
            >>> snapshot = lake.snapshot(commit_no=1)
        """
        return LakeSnapshot(self, read.resolve_commit(self._workspace, self.caller, commit_no))

    def close(self) -> None:
        """Stop the local pipeline runs and query processes, and disconnect from the catalog."""
        self._run_worker.close()
        self._query_executor.close()
        self._workspace.close()

    def __enter__(self) -> "Lake":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<penstock.Lake at {self._folder.folder}, tenant {self.caller.tenant}>"


class LakeSnapshot:
    """All datasets of one tenant as of one commit. Reads of several datasets are consistent.

    Attributes:
        commit_no: number of the commit
    """

    def __init__(self, lake: Lake, commit_no: int) -> None:
        self._lake, self.commit_no = lake, commit_no

    def dataset(self, name: str) -> "DatasetVersion":
        """Return the version of a dataset as of the commit.

        Args:
            name: namespace and name of the dataset

        Raises:
            NotFound: the dataset did not exist then

        Example:
            >>> snapshot.dataset("demo.people").num_rows
            2
        """
        lake = self._lake
        name_at_commit = DatasetName.parse(name)
        return DatasetVersion(lake, read.find_at_commit(lake._workspace, lake.caller, name_at_commit, self.commit_no))


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
