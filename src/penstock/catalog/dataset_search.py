"""Search datasets with OData query options."""

from sqlalchemy import literal, select

from penstock.catalog import odata_sql, search_statements
from penstock.catalog.database import CatalogTransaction
from penstock.catalog.odata_sql import Columns, FoldedText
from penstock.catalog.snapshots import NEWEST_OF_ALL, snapshot_from_row
from penstock.catalog.tables import dataset_versions, datasets
from penstock.catalog.tenant_guard import tenant_filter
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.odata import FieldKind, Fields, QueryOptions
from penstock.core.paging import SearchPage

_d, _v = datasets.c, dataset_versions.c
_name = _d.schema_name + literal(".") + _d.table_name

FIELDS: Fields = {
    "id": FieldKind.GUID,
    "name": FieldKind.TEXT,
    "schema_name": FieldKind.TEXT,
    "table_name": FieldKind.TEXT,
    "row_ids": FieldKind.BOOLEAN,
    "read_only": FieldKind.BOOLEAN,
    "created_at": FieldKind.INSTANT,
    "version": FieldKind.INTEGER,
    "operation": FieldKind.TEXT,
    "rows": FieldKind.INTEGER,
    "files": FieldKind.INTEGER,
    "bytes": FieldKind.INTEGER,
    "at": FieldKind.INSTANT,
    "author": FieldKind.TEXT,
}
_COLUMNS: Columns = {
    **{name: _v[name] for name in ("version", "operation", "rows", "files", "bytes", "author")},
    **{name: _d[name] for name in ("schema_name", "table_name", "row_ids", "read_only", "created_at")},
    "id": _d.dataset_id,
    "name": _name,
    "at": _v.created_at,
}
_ALL = NEWEST_OF_ALL.order_by(None)
_NAME = FoldedText(
    _name, _d.name_key, odata_sql.upper_ascii(_name)
)  # names are ASCII: all databases fold them the same way


def list_namespaces(tx: CatalogTransaction) -> list[str]:
    """Return the namespaces that have a dataset. Spellings that differ in case count as one."""
    spelling_by_key = {row.schema_name.lower(): row.schema_name for row in tx.all(_SELECT_NAMESPACES)}
    return [spelling_by_key[key] for key in sorted(spelling_by_key)]


_SELECT_NAMESPACES = select(_d.schema_name).where(tenant_filter(datasets), _d.dropped_at.is_(None)).distinct()


def search(tx: CatalogTransaction, options: QueryOptions) -> SearchPage[Snapshot]:
    """Return a page of the tenant's datasets at their newest versions, by name unless another order is requested."""
    statement = _ALL.where(*odata_sql.conditions(options.filter, options.search, _COLUMNS, [_NAME]))
    tie_break = [_d.dataset_id] if options.orderby else [_d.name_key]
    keys = search_statements.sort_keys(options.orderby, _COLUMNS, tie_break)
    search = search_statements.prepare_search(statement, keys, search_statements.null_positions(options))
    return search_statements.search_page(tx, search, options, snapshot_from_row)
