"""Validate the cluster key of a dataset: the columns that compaction sorts rows by."""

from collections.abc import Sequence

import pyarrow as pa

from penstock.core.dataset.column_stats import has_stats
from penstock.core.formatting import format_value
from penstock.core.names import join_names
from penstock.errors import Invalid

MAX_CLUSTER_COLUMNS = 4


def check_cluster_key(columns: str | Sequence[str], schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns of a cluster key, after a check against the schema. No column means no cluster key.

    Raises:
        Invalid: a column does not exist, is nested or is repeated, or there are more than four
    """
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if len(names) > MAX_CLUSTER_COLUMNS:
        raise Invalid("bad_cluster_key.too_many", {"count": len(names), "max_columns": MAX_CLUSTER_COLUMNS})
    for index, name in enumerate(names):
        if name not in schema.names:
            raise Invalid("bad_cluster_key.unknown_column", {"valid": join_names(schema.names)}, column=name)
        if not has_stats(data_type := schema.field(name).type):
            raise Invalid("bad_cluster_key.nested", {"data_type": format_value(data_type)}, column=name)
        if name in names[:index]:
            raise Invalid("bad_cluster_key.repeated", column=name)
    return names
