"""Registered queries of the Python API and their results."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from penstock.core import odata
from penstock.core.formatting import format_count
from penstock.core.names import DatasetName
from penstock.core.registry.query import RegisteredQuery as QueryDefinition
from penstock.service.queries import definitions as query_definitions
from penstock.service.queries.execution import QueryRequest, QueryRows

if TYPE_CHECKING:
    from penstock.lake import Lake

_MAX_ROWS = 2**31  # above the highest limit of a result, so that all rows are returned


class Query:
    """A registered query: one SELECT with parameters and a result schema.

    Penstock validates every row against the result schema before it returns any.

    Attributes:
        id: id of the query
    """

    def __init__(self, lake: "Lake", query: UUID, versions: Mapping[str, int] | None = None) -> None:
        self._lake, self.id, self._versions = lake, query, versions or {}

    def current(self) -> QueryDefinition:
        """Return the current revision: SQL, parameters, result schema and state.

        Raises:
            NotFound: the query was deleted

        Example:
            >>> query.current().draft.name
            'names by length'
        """
        return query_definitions.show(self._lake._workspace, self._lake.caller, str(self.id))

    def at(self, versions: Mapping[str, int]) -> "Query":
        """Return the same query over given versions of its datasets.

        The versions are checked when the query runs.

        Args:
            versions: version numbers by dataset name, as in `{"finance.transactions": 3}` or `result.versions`

        Raises:
            Invalid: raised by `run`: the query does not read one of the datasets
            NotFound: raised by `run`: a version does not exist

        Example:
            >>> query.at({"demo.people": 1}).run().num_rows
            2
        """
        return Query(self._lake, self.id, versions)

    def run(self, options: Mapping[str, Any] | None = None, /, **parameters: Any) -> "QueryResult":
        """Run the query.

        Args:
            options: OData options `$filter`, `$orderby`, `$select`, `$top`, `$skip`, `$count`; by default all rows
            parameters: values of the query's parameters

        Raises:
            Invalid: an option or a parameter is invalid, or a version of a dataset that the query does not read
            NotFound: a dataset or version does not exist
            Unsupported: a row violates the result schema; `errors` of its context lists the violations

        Example:
            >>> result = query.run({"$filter": "letters le 5", "$orderby": "name", "$count": True}, min_letters=3)
            >>> result.rows[0]
            {'name': 'Ada', 'letters': 3}
        """
        lake, options = self._lake, options or {}
        loaded = lake._query_executor.load(lake.caller, str(self.id))
        pairs = [
            (name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in options.items()
        ]
        parsed = odata.options(pairs, loaded.odata_fields, default_top=_MAX_ROWS, max_top=_MAX_ROWS)
        versions = {DatasetName.parse(name).key: version for name, version in self._versions.items()}
        request = QueryRequest(parsed, parameters, versions, all_rows=not {"$top", "$skip"} & set(options))
        return QueryResult(lake._query_executor.run(lake.caller, loaded, request))


class QueryResult:
    """The rows of a query, and the dataset versions that it read. Arrow-compatible libraries read it as a stream."""

    def __init__(self, result: QueryRows) -> None:
        self._result = result

    @property
    def versions(self) -> dict[str, int]:
        """Version numbers that the query read, by dataset name.

        Example:
            >>> query.at(result.versions).run(min_letters=3).num_rows >= result.num_rows
            True
        """
        return dict(self._result.versions)

    @property
    def schema(self) -> pa.Schema:
        """Columns of the result."""
        return self._result.table.schema

    @property
    def num_rows(self) -> int:
        """Number of rows of the result."""
        return len(self._result.table)

    @property
    def has_more(self) -> bool:
        """True if `$top` or the limit of 1,000 rows cut off further rows."""
        return self._result.has_more

    @property
    def count(self) -> int | None:
        """Number of rows that match `$filter`, if `$count` was requested."""
        return self._result.count

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows as dicts of Python values."""
        rows: list[dict[str, Any]] = self._result.table.to_pylist()
        return rows

    def to_arrow(self) -> pa.Table:
        """Return the rows as an Arrow table.

        Example:
            >>> result.to_arrow().column_names
            ['name', 'letters']
        """
        return self._result.table

    def to_pandas(self) -> Any:
        """Return the rows as a pandas data frame.

        Raises:
            ModuleNotFoundError: pandas is not installed

        Example:
            >>> result.to_pandas().name[0]
            'Ada'
        """
        return self._result.table.to_pandas()

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._result.table.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        datasets = ", ".join(f"{name} version {version}" for name, version in self.versions.items())
        return format_count(self.num_rows, "row") + (f" of {datasets}" if datasets else "")
