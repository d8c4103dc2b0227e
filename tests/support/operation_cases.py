"""Operations as plain values with their responses and resulting rows: the same through every entry point.

A case names its datasets (`{"dataset_id": "budgets"}`); each entry point replaces dataset names by ids. Responses have no times.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pyarrow as pa

from penstock.lake import Dataset, Lake

UNKNOWN = "550e8400-e29b-41d4-a716-446655440000"

_text, _double = pa.string(), pa.float64()
_BUDGET = pa.schema(
    [
        ("budget_id", pa.int64()),
        ("budget_type", _text),
        ("account_code", _text),
        ("cost_center_code", _text),
        ("department_code", _text),
        ("status", _text),
        ("amount", _double),
    ]
)
_BUDGETS = [
    (1, "original", "4000", "C1", "sales", "approved", 20_000.0),
    (2, "revised", "4000", "C1", "sales", "approved", 12_000.0),
    (3, "original", "4100", "C2", "sales", "open", 50_000.0),
    (4, "original", "4100", None, "legal", "approved", 9_000.0),
    (5, "revised", "4000", "C1", "legal", "approved", None),
]
_COMPUTED = [
    ("total_budget", _double),
    ("budget_count", pa.int64()),
    ("high_value_total", _double),
    ("high_value_count", pa.int64()),
    ("avg_high_value", _double),
]
_NARROW = pa.schema([("account_code", _text), ("amount", _double), ("description", _text)])

DATASETS: dict[str, pa.Table] = {
    "transactions": pa.table(
        {
            "budget_id": pa.array([100, 101], pa.int64()),
            **{name: pa.nulls(2, _BUDGET.field(name).type) for name in _BUDGET.names[1:-1]},
            "amount": [1.0, 2.0],
            **{name: pa.nulls(2, data_type) for name, data_type in _COMPUTED},
        }
    ),
    "budgets": pa.table([list(column) for column in zip(*_BUDGETS, strict=True)], schema=_BUDGET),
    "narrow": pa.table([["4000"], [1.0], ["first"]], schema=_NARROW),
    "notes": pa.table([["4100", "4200"], [7.0, 8.0], ["a", "b"]], schema=_NARROW),
    "extras": pa.table({"account_code": ["4000"], "amount": [1.0], "budget_type": ["x"], "fiscal_year": [2026]}),
    "null_key": pa.table({"account_code": pa.array([None, "4000"], _text), "amount": [5.0, 6.0]}),
    "duplicate_keys": pa.table({"account_code": ["4000", "4000"], "amount": [5.0, 6.0]}),
    "words": pa.table({"account_code": ["4000"], "amount": ["much"]}),
}
VERSIONS = {"budgets": 3}  # datasets with several versions; each version appends the same rows again


@dataclass(frozen=True)
class OperationCase:
    name: str
    working: str
    operation: dict[str, Any]
    response: dict[str, Any]  # the response, without times
    rows: list[dict[str, Any]] | None = None  # the added rows without NULLs; None: no row has changed
    status: int = 200  # over HTTP


def _append(order: int, source: str, version: int | None = None, **options: Any) -> dict[str, Any]:
    ref = {"dataset_id": source} | ({} if version is None else {"dataset_version": version})
    alias = {"alias": options.pop("alias")} if "alias" in options else {}
    return {"type": "append", "order": order, **alias, "parameters": {"source": ref, **options}}


def _merge(order: int, source: str, keys: Any, strategy: str, **options: Any) -> dict[str, Any]:
    parameters = {"source": {"dataset_id": source}, "key_columns": keys, "strategy": strategy, **options}
    return {"type": "merge", "order": order, "parameters": parameters}


def _appended(order: int, source: str, rows: int, before: int, **set_flags: bool) -> dict[str, Any]:
    flags = {"aggregated": False, "filtered": False} | set_flags
    counts = {"working_dataset_rows_before": before, "working_dataset_rows_after": before + rows}
    result = {"rows_appended": rows, "source_dataset_id": source, **counts, **flags}
    return {"success": True, "operation": "append", "order": order, "result": result}


def _merged(
    order: int, source: str, before: int, inserted: int, updated: int, deleted: int, *, filtered: bool
) -> dict[str, Any]:
    after = before + inserted - deleted
    result = {
        "inserted": inserted,
        "updated": updated,
        "deleted": deleted,
        "total": after,
        "source_dataset_id": source,
        "working_dataset_rows_before": before,
        "working_dataset_rows_after": after,
        "filtered": filtered,
    }
    return {"success": True, "operation": "merge", "order": order, "result": result}


def _error(code: str, message: str, **details: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "details": details}}


def _aggregation(group_by: list[str], **outputs: str) -> dict[str, Any]:
    aggregations = [{"column": column, "expression": expression} for column, expression in outputs.items()]
    return {"group_by": group_by, "aggregations": aggregations}


def _rows(*indexes: int) -> list[dict[str, Any]]:
    rows = [dict(zip(_BUDGET.names, _BUDGETS[number - 1], strict=True)) for number in indexes]
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


APPENDS = [
    OperationCase(
        "TS-01 all rows of the source are appended",
        "transactions",
        _append(1, "budgets", 1),
        _appended(1, "budgets", 5, 2),
        _rows(1, 2, 3, 4, 5),
    ),
    OperationCase(
        "TS-06 only rows that match the selector are appended",
        "transactions",
        _append(2, "budgets", 1, alias="append_original_budgets", source_selector="budget_type = 'original'"),
        {**_appended(2, "budgets", 3, 2, filtered=True), "alias": "append_original_budgets"},
        _rows(1, 3, 4),
    ),
    OperationCase(
        "TS-13 groups of a pinned version are appended, and NULL is a group",
        "transactions",
        _append(
            3,
            "budgets",
            2,
            aggregation=_aggregation(
                ["account_code", "cost_center_code"], total_budget="SUM(amount)", budget_count="COUNT(budget_id)"
            ),
        ),
        _appended(3, "budgets", 3, 2, aggregated=True),
        [
            {"account_code": "4000", "cost_center_code": "C1", "total_budget": 64_000.0, "budget_count": 6},
            {"account_code": "4100", "cost_center_code": "C2", "total_budget": 100_000.0, "budget_count": 2},
            {"account_code": "4100", "total_budget": 18_000.0, "budget_count": 2},
        ],
    ),
    OperationCase(
        "TS-15 rows are filtered before they are grouped",
        "transactions",
        _append(
            4,
            "budgets",
            1,
            source_selector="amount > 10000 AND status = 'approved'",
            aggregation=_aggregation(
                ["department_code"],
                high_value_total="SUM(amount)",
                high_value_count="COUNT(*)",
                avg_high_value="AVG(amount)",
            ),
        ),
        _appended(4, "budgets", 1, 2, aggregated=True, filtered=True),
        [
            {
                "department_code": "sales",
                "high_value_total": 32_000.0,
                "high_value_count": 2,
                "avg_high_value": 16_000.0,
            }
        ],
    ),
    OperationCase(
        "an append without matching rows succeeds",
        "transactions",
        _append(0, "budgets", source_selector="amount < 0"),
        _appended(0, "budgets", 0, 2, filtered=True),
        [],
    ),
    OperationCase(
        "a dataset is appended to itself",
        "narrow",
        _append(0, "narrow"),
        _appended(0, "narrow", 1, 1),
        [{"account_code": "4000", "amount": 1.0, "description": "first"}],
    ),
    OperationCase(
        "an unknown source",
        "transactions",
        _append(2, UNKNOWN),
        _error("APPEND_001", "Dataset not found", dataset_id=UNKNOWN, operation_order=2),
        status=404,
    ),
    OperationCase(
        "an unknown source, with a version",
        "transactions",
        _append(2, UNKNOWN, 5),
        _error("APPEND_001", "Dataset not found", dataset_id=UNKNOWN, operation_order=2),
        status=404,
    ),
    OperationCase(
        "an unknown version",
        "transactions",
        _append(2, "budgets", 5),
        _error(
            "APPEND_002",
            "Dataset version not found",
            dataset_id="budgets",
            requested_version=5,
            actual_version=3,
            operation_order=2,
        ),
        status=404,
    ),
    OperationCase(
        "columns that are not in the working dataset",
        "narrow",
        _append(0, "extras"),
        _error(
            "APPEND_003",
            "Appended rows contain columns not in working dataset",
            extra_columns=["budget_type", "fiscal_year"],
            working_columns=["account_code", "amount", "description"],
            operation_order=0,
        ),
        status=400,
    ),
    OperationCase(
        "extra columns are rejected even if no row matches",
        "narrow",
        _append(0, "extras", source_selector="amount < 0"),
        _error(
            "APPEND_003",
            "Appended rows contain columns not in working dataset",
            extra_columns=["budget_type", "fiscal_year"],
            working_columns=["account_code", "amount", "description"],
            operation_order=0,
        ),
        status=400,
    ),
    OperationCase(
        "an invalid selector",
        "transactions",
        _append(1, "budgets", source_selector="invalid syntax here"),
        _error(
            "APPEND_004",
            "Failed to parse source_selector expression",
            expression="invalid syntax here",
            parse_error="Expected comparison operator at position 8",
            operation_order=1,
        ),
        status=400,
    ),
    OperationCase(
        "an unsupported function",
        "transactions",
        _append(1, "budgets", aggregation=_aggregation(["account_code"], total_budget="MEDIAN(amount)")),
        _error(
            "APPEND_005",
            "Invalid aggregation function",
            expression="MEDIAN(amount)",
            supported_functions=["SUM", "COUNT", "AVG", "MIN_AGG", "MAX_AGG"],
            operation_order=1,
        ),
        status=400,
    ),
    OperationCase(
        "a grouping column that is not in the source",
        "narrow",
        _append(1, "notes", aggregation=_aggregation(["nonexistent_column"], amount="SUM(amount)")),
        _error(
            "APPEND_006",
            "Column referenced in aggregation not found in source dataset",
            column="nonexistent_column",
            context="group_by",
            source_columns=["account_code", "amount", "description"],
            operation_order=1,
        ),
        status=400,
    ),
    OperationCase(
        "a selector column that is not in the source",
        "narrow",
        _append(1, "notes", source_selector="nonexistent_column = 1"),
        _error(
            "APPEND_006",
            "Column referenced in expression not found in source dataset",
            column="nonexistent_column",
            context="source_selector",
            source_columns=["account_code", "amount", "description"],
            operation_order=1,
        ),
        status=400,
    ),
    OperationCase(
        "incompatible types",
        "narrow",
        _append(0, "words"),
        _error(
            "APPEND_007",
            "Column types do not match",
            column="amount",
            source_type="string",
            working_type="double",
            problem="string does not widen to double; cast the source column",
            operation_order=0,
        ),
        status=400,
    ),
    OperationCase(
        "an unknown parameter",
        "narrow",
        _append(0, "notes", limit=5),
        _error(
            "APPEND_000",
            "Invalid append operation",
            pointer="/parameters/limit",
            problem="is not a valid member. Valid members: source, source_selector, aggregation",
            operation_order=0,
        ),
        status=400,
    ),
]

MERGES = [
    OperationCase(
        "an upsert counts inserted and updated rows",
        "narrow",
        _merge(0, "notes", ["account_code"], "upsert", source_selector="amount < 8"),
        _merged(0, "notes", 1, 1, 0, 0, filtered=True),
        [{"account_code": "4100", "amount": 7.0, "description": "a"}],
    ),
    OperationCase(
        "deduplicate keeps the highest row",
        "narrow",
        _merge(0, "duplicate_keys", "account_code", "deduplicate", dedup_order_by=["amount"]),
        _merged(0, "duplicate_keys", 1, 0, 1, 0, filtered=False),
        [{"account_code": "4000", "amount": 6.0, "description": "first"}],
    ),
    OperationCase(
        "a merge of an unknown source",
        "narrow",
        _merge(3, UNKNOWN, "account_code", "upsert"),
        _error("MERGE_001", "Dataset not found", dataset_id=UNKNOWN, operation_order=3),
        status=404,
    ),
    OperationCase(
        "NULL in a key",
        "narrow",
        _merge(0, "null_key", "account_code", "upsert"),
        _error(
            "MERGE_005",
            "Key columns contain NULL",
            problem="The source has NULL in key columns: 1 in column 'account_code'. Remove these rows or fill in the key",
            side="source",
            nulls={"account_code": 1},
            operation_order=0,
        ),
        status=400,
    ),
    OperationCase(
        "a duplicate key",
        "narrow",
        _merge(0, "duplicate_keys", "account_code", "upsert"),
        _error(
            "MERGE_006",
            "Source rows contain duplicate keys",
            problem="The source has 1 row with duplicate keys, for example account_code='4000'. "
            "Use strategy 'deduplicate' or remove the duplicates",
            rows=1,
            operation_order=0,
        ),
        status=400,
    ),
    OperationCase(
        "an invalid selector of a merge",
        "narrow",
        _merge(0, "notes", "account_code", "upsert", source_selector="   "),
        _error(
            "MERGE_007",
            "Failed to parse source_selector expression",
            expression="   ",
            parse_error="Expected column or value at position 3",
            operation_order=0,
        ),
        status=400,
    ),
]
CASES = [*APPENDS, *MERGES]


def create_datasets(lake: Lake) -> dict[str, Dataset]:
    """Create the datasets of the cases."""
    datasets = {name: lake.create(f"demo.{name}", table) for name, table in DATASETS.items()}
    for name, versions in VERSIONS.items():
        for _ in range(versions - 1):
            datasets[name].append(DATASETS[name])
    return datasets


def self_append_pipeline(ds: Dataset) -> dict[str, Any]:
    """Return a pipeline that appends a dataset to itself."""
    operation = {"type": "append", "parameters": {"source": {"dataset_id": str(ds.id)}}}
    return {"name": "twice", "working": {"dataset_id": str(ds.id)}, "operations": [operation]}


def build_operation(case: OperationCase, ids: dict[str, str]) -> dict[str, Any]:
    """Return the operation with dataset ids instead of names."""
    parameters = case.operation["parameters"]
    source = parameters["source"]
    ref = {**source, "dataset_id": ids.get(source["dataset_id"], source["dataset_id"])}
    return {**case.operation, "parameters": {**parameters, "source": ref}}


def normalize_response(response: dict[str, Any], ids: dict[str, str]) -> dict[str, Any]:
    """Return a response in the form of the cases: names instead of ids, without times."""
    names = {id: name for name, id in ids.items()}
    if "error" in response:
        details = {key: names.get(value, value) if _is_id(value) else value for key, value in details_of(response)}
        return {"error": {**response["error"], "details": details}}
    result = {**response["result"], "source_dataset_id": names.get(response["result"]["source_dataset_id"])}
    milliseconds = result.pop("execution_time_ms")
    assert isinstance(milliseconds, int)
    assert milliseconds >= 0
    return {**response, "result": result}


def details_of(response: dict[str, Any]) -> Any:
    return response["error"]["details"].items()


def added_rows(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the added rows without their NULLs, with duplicates."""
    unmatched = [tuple(row.items()) for row in before]
    added = []
    for row in after:
        if (values := tuple(row.items())) in unmatched:
            unmatched.remove(values)
        else:
            added.append({name: value for name, value in row.items() if value is not None})
    return sorted(added, key=str)


def _is_id(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(UUID(value))
    except ValueError:
        return False
