"""Analyze a statement as parsed by DuckDB: the datasets that it names, and whether it only selects.

Everything that is not known to be harmless is rejected: clauses that are not listed below, and table functions that could
access a file or a memory address. This check is in addition to the confinement of the process.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import Invalid, NotFound

Tree = dict[str, Any]

_CLAUSES = {
    "SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE",
    "BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EXPRESSION_LIST", "EMPTY", "PIVOT",
    "ORDER_MODIFIER", "LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER", "DISTINCT_MODIFIER",
    "ORDER_DEFAULT", "ASCENDING", "DESCENDING",
}  # fmt: skip
_TABLE_FUNCTIONS = {
    "generate_series", "generate_subscripts", "json_each", "json_tree", "range", "repeat", "repeat_row", "unnest",
}  # fmt: skip
# These deserialize the state of an aggregate or a statement, or write to the log of DuckDB.
_UNSAFE_FUNCTIONS = {
    "to_aggregate_state", "finalize", "combine", "write_log",
    "json_serialize_sql", "json_deserialize_sql", "json_serialize_plan", "json_execute_serialized_sql",
}  # fmt: skip
# Functions whose result depends on the time, on chance, or on the state of a connection.
VOLATILE = frozenset({
    "age", "ago", "assert_true", "current_catalog", "current_connection_id", "current_database", "current_date",
    "current_localtime", "current_localtimestamp", "current_query", "current_query_id", "current_schema",
    "current_schemas", "current_setting", "current_transaction_id", "currval", "error", "gen_random_uuid",
    "get_current_time", "get_current_timestamp", "getvariable", "in_search_path", "nextval", "now",
    "pg_conf_load_time", "pg_postmaster_start_time", "pg_sleep", "random", "reservoir_quantile", "setseed", "setval",
    "sleep_ms", "stats", "today", "transaction_timestamp", "txid_current", "uuid", "uuidv4", "uuidv7", "vector_type",
    "write_log",
})  # fmt: skip
# Volatile functions that need no parentheses, so that they look like a column.
VOLATILE_WORDS = frozenset(
    {
        "current_catalog",
        "current_date",
        "current_schema",
        "current_time",
        "current_timestamp",
        "localtime",
        "localtimestamp",
    }
)
_CONDITIONS = ("where_clause", "having", "qualify", "condition")  # of a SELECT and of a join
_LOGICAL_OPERATORS = {"CONJUNCTION_AND", "CONJUNCTION_OR", "OPERATOR_NOT"}
_TESTS = {"COMPARE_IN", "COMPARE_NOT_IN", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"}
# Schemas of DuckDB itself. Datasets in a schema of such a name are registered in another schema.
_SYSTEM_SCHEMAS = {"main", "temp", "system", "memory", "information_schema", "pg_catalog", "recurring"}


@dataclass(frozen=True, slots=True)
class TableRef:
    """A dataset that a statement names: `finance.tx AT (VERSION => 3)`."""

    schema: str
    table: str
    version: int | None = None

    @property
    def key(self) -> "TableRef":
        """The reference in lower case: dataset names are not case-sensitive."""
        return TableRef(self.schema.lower(), self.table.lower(), self.version)

    @property
    def duckdb_schema(self) -> str:
        """The DuckDB schema that the dataset is registered in. No dataset name contains @, so it cannot collide."""
        if self.version is None and self.schema.lower() not in _SYSTEM_SCHEMAS:
            return self.schema
        return f"{self.schema}@{'' if self.version is None else self.version}"


@dataclass(frozen=True, slots=True)
class ParsedStatement:
    tables: tuple[TableRef, ...]
    parameters: tuple[str, ...]
    params_in_comparisons_only: bool = True  # if so, no column type depends on the value of a parameter
    repeatable: bool = True  # the same versions always give the same rows
    ordered: bool = False  # the statement has an ORDER BY of its own
    select: str = ""  # the statement as serialized by DuckDB


@dataclass(slots=True)
class SqlAnalysis:
    tables: dict[TableRef, TableRef] = field(default_factory=dict)  # by key, in order of occurrence
    columns: set[str] = field(default_factory=set)  # every word that may be a column name
    parameters: tuple[str, ...] = ()
    parameter_uses: int = 0  # occurrences of parameters
    parameter_comparisons: int = 0  # occurrences as an operand of a comparison
    repeatable: bool = True
    ordered: bool = False

    @property
    def parsed(self) -> ParsedStatement:
        only_compared = self.parameter_uses == self.parameter_comparisons
        tables = tuple(self.tables.values())
        return ParsedStatement(tables, self.parameters, only_compared, self.repeatable, self.ordered)


def single_select(serialized: Tree) -> Tree:
    """Return the only SELECT in the output of `json_serialize_sql`.

    Raises:
        Invalid: the statement has a syntax error (bad_sql) or is not one SELECT (not_one_select)
    """
    if serialized["error"]:
        if serialized["error_type"] == "not implemented" and "SELECT" in serialized["error_message"]:
            raise _not_one_select()
        if "expression depth" in serialized["error_message"]:
            raise _too_deep()
        position = serialized.get("position")
        facts = {"position": int(position)} if position is not None and position.isdigit() else {}
        raise Invalid("bad_sql.syntax", {"cause": serialized["error_message"].partition(chr(10))[0]}, **facts)
    if len(serialized["statements"]) != 1:
        raise _not_one_select()
    (statement,) = serialized["statements"]
    return statement  # type: ignore[no-any-return]


def analyze(statement: Tree) -> SqlAnalysis:
    """Return the tables, columns and parameters of a statement, and write each table's DuckDB schema into the tree."""
    analysis = SqlAnalysis()
    try:
        _walk(statement, frozenset(), analysis)
    except RecursionError:
        raise _too_deep() from None
    analysis.parameters = tuple(entry["key"] for entry in statement["named_param_map"])
    analysis.ordered = bool(own_order(statement))
    if unnamed := [name for name in analysis.parameters if name.isdigit()]:
        raise Invalid("bad_sql.unnamed_parameter", {"parameter": unnamed[0]})
    return analysis


def own_order(statement: Tree) -> list[Tree]:
    """Return the elements of the ORDER BY of a statement, not of its subqueries. Changing the list changes the tree."""
    modifiers = statement["node"]["modifiers"]
    return next((modifier["orders"] for modifier in modifiers if modifier["type"] == "ORDER_MODIFIER"), [])


def add_order(statement: Tree, elements: list[Tree]) -> None:
    """Add elements to the ORDER BY of a statement, which decide between rows that it treats as equal."""
    order = own_order(statement)
    if not any(element["expression"]["class"] == "STAR" for element in order):  # ORDER BY ALL leaves no equal rows
        order += elements


def _walk(node: Any, ctes: frozenset[str], analysis: SqlAnalysis) -> None:
    if isinstance(node, list):
        for inner in node:
            _walk(inner, ctes, analysis)
    if not isinstance(node, dict):
        return
    match node.get("class"):
        case None:
            _check_clause(node, ctes, analysis)
        case "FUNCTION" | "WINDOW":
            _check_function(node, analysis)
        case "COLUMN_REF":
            words = [*map(str.lower, node["column_names"])]
            analysis.columns.update(words)
            analysis.repeatable &= words[0] not in VOLATILE_WORDS
        case "PARAMETER":
            analysis.parameter_uses += 1
    for name, inner, seen in _parts(node, ctes):
        if name == "using_columns":
            analysis.columns.update(map(str.lower, inner))
        _walk(inner, seen, analysis)


def _parts(node: Tree, ctes: frozenset[str]) -> Iterator[tuple[str, Any, frozenset[str]]]:
    """Yield the children of a node with the names of the WITH clauses that are visible in each."""
    if cte_map := node.get("cte_map"):
        for entry in cte_map["map"]:
            yield "cte", entry["value"], ctes
            ctes = ctes | {entry["key"].lower()}
    if "cte_name" in node:  # a recursive clause sees its own name
        ctes = ctes | {node["cte_name"].lower()}
    for name, inner in node.items():
        if name != "cte_map" and isinstance(inner, dict | list):
            yield name, inner, ctes


def _check_clause(node: Tree, ctes: frozenset[str], analysis: SqlAnalysis) -> None:
    clause = node.get("type")
    if not isinstance(clause, str):
        return
    analysis.repeatable &= not node.get("sample")
    analysis.parameter_comparisons += sum(
        _count_compared_parameters(node[name]) for name in _CONDITIONS if node.get(name)
    )
    if clause == "TABLE_FUNCTION":
        name = node["function"].get("function_name", "").lower()
        if name not in _TABLE_FUNCTIONS:
            raise Invalid("bad_sql.table_function", {"name": name, "allowed": sorted(_TABLE_FUNCTIONS)})
    elif clause == "BASE_TABLE":
        _add_table(node, ctes, analysis)
    elif clause not in _CLAUSES and not clause.endswith("_TYPE_INFO"):
        raise Invalid("not_one_select.clause", {"clause": clause.lower()})


def _count_compared_parameters(node: Tree) -> int:
    """Count the parameters that a condition only compares.

    Outside of a condition, a comparison can change a type: `round(amount, ($n > 1)::INT)` depends on $n.
    """
    match node:
        case {"type": operator, "children": children} if operator in _LOGICAL_OPERATORS:
            return sum(map(_count_compared_parameters, children))
        case {"class": "COMPARISON", "left": left, "right": right}:
            operands = [left, right]
        case {"class": "BETWEEN", "input": value, "lower": lower, "upper": upper}:
            operands = [value, lower, upper]
        case {"type": operator, "children": operands} if operator in _TESTS:
            pass
        case _:
            return 0
    return sum(operand["class"] == "PARAMETER" for operand in operands)


def _check_function(node: Tree, analysis: SqlAnalysis) -> None:
    name = node["function_name"].lower()
    analysis.repeatable &= name not in VOLATILE
    if name in _UNSAFE_FUNCTIONS or name.startswith("__internal") or node.get("export_state"):
        raise Invalid("bad_sql.function", {"name": name})


def _add_table(node: Tree, ctes: frozenset[str], analysis: SqlAnalysis) -> None:
    path = node["qualified_name"]["path"]
    if len(path) == 1 and path[0].lower() in ctes:
        return
    if len(path) != 2:
        name = ".".join(path)
        raise NotFound("dataset_not_found.sql", dataset=name)
    ref = TableRef(path[0], path[1], _version(node))
    ref = analysis.tables.setdefault(ref.key, ref)
    if ref.duckdb_schema != ref.schema:
        node["alias"] = node["alias"] or node["table_name"]
        node["schema_name"], node["at_clause"] = ref.duckdb_schema, None
        node["qualified_name"] = {"path": [ref.duckdb_schema, node["table_name"]]}


def _version(node: Tree) -> int | None:
    clause = node["at_clause"]
    if clause is None:
        return None
    match clause:
        case {"unit": str(unit), "expr": {"literal": {"kind": "INTEGER", "text": str(text)}}} if (
            unit.upper() == "VERSION" and text.isdecimal()
        ):
            return int(text)
    raise Invalid("bad_sql.version")


def _not_one_select() -> Invalid:
    return Invalid("not_one_select.statement")


def _too_deep() -> Invalid:
    return Invalid("bad_sql.too_deep")
