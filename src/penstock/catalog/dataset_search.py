"""Find datasets by what is known of them."""

from sqlalchemy import literal, select

from penstock.catalog import odata_sql as searches
from penstock.catalog.database import Tx, mine
from penstock.catalog.snapshots import NEWEST_OF_ALL, snapshot
from penstock.catalog.odata_sql import Cased, Columns, Page
from penstock.catalog.tables import dataset_versions, datasets
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.odata import Fields, Kind, Options

_d, _v = datasets.c, dataset_versions.c
_name = _d.schema_name + literal(".") + _d.table_name

FIELDS: Fields = {
    "id": Kind.GUID,
    "name": Kind.TEXT,
    "schema_name": Kind.TEXT,
    "table_name": Kind.TEXT,
    "row_ids": Kind.BOOLEAN,
    "read_only": Kind.BOOLEAN,
    "created_at": Kind.INSTANT,
    "version": Kind.INTEGER,
    "operation": Kind.TEXT,
    "rows": Kind.INTEGER,
    "files": Kind.INTEGER,
    "bytes": Kind.INTEGER,
    "at": Kind.INSTANT,
    "author": Kind.TEXT,
}
_COLUMNS: Columns = {
    **{name: _v[name] for name in ("version", "operation", "rows", "files", "bytes", "author")},
    **{name: _d[name] for name in ("schema_name", "table_name", "row_ids", "read_only", "created_at")},
    "id": _d.dataset_id,
    "name": _name,
    "at": _v.created_at,
}
_NAME = Cased(_name, _d.name_key, searches.upper(_name))  # names are ASCII, which every database folds alike


def schema_names(tx: Tx) -> list[str]:
    """The schemas that have a dataset; each once, though it be spelled in two cases."""
    found = {row.schema_name.lower(): row.schema_name for row in tx.all(_SCHEMAS)}
    return [found[key] for key in sorted(found)]


_SCHEMAS = select(_d.schema_name).where(mine(datasets), _d.dropped_at.is_(None)).distinct()


def search(tx: Tx, options: Options) -> Page[Snapshot]:
    """The tenant's datasets at their newest versions; by name unless another order is asked for."""
    wanted = NEWEST_OF_ALL.where(*searches.conditions(options.filter, options.search, _COLUMNS, [_NAME]))
    if options.orderby:
        wanted = wanted.order_by(None).order_by(*searches.order(options.orderby, _COLUMNS, [_d.dataset_id]))
    return searches.page(tx, wanted, options, snapshot)
