"""Read a statement as DuckDB parsed it: which datasets it names, and whether it does nothing but select.

What is not known to be harmless is refused: a clause that is not in the list below, and a table function that could reach
a file or an address in memory. The process is the wall; this is the door.
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
# They take the inside of an aggregate or a statement from a text, or write to DuckDB's log.
_UNSAFE = {
    "to_aggregate_state", "finalize", "combine", "write_log",
    "json_serialize_sql", "json_deserialize_sql", "json_serialize_plan", "json_execute_serialized_sql",
}  # fmt: skip
# What answers otherwise when it is asked again: the time, chance, or the state of a connection.
VOLATILE = frozenset({
    "age", "ago", "assert_true", "current_catalog", "current_connection_id", "current_database", "current_date",
    "current_localtime", "current_localtimestamp", "current_query", "current_query_id", "current_schema",
    "current_schemas", "current_setting", "current_transaction_id", "currval", "error", "gen_random_uuid",
    "get_current_time", "get_current_timestamp", "getvariable", "in_search_path", "nextval", "now",
    "pg_conf_load_time", "pg_postmaster_start_time", "pg_sleep", "random", "reservoir_quantile", "setseed", "setval",
    "sleep_ms", "stats", "today", "transaction_timestamp", "txid_current", "uuid", "uuidv4", "uuidv7", "vector_type",
    "write_log",
})  # fmt: skip
# Those of them that need no parentheses, so that they look like a column.
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
_LOGIC = {"CONJUNCTION_AND", "CONJUNCTION_OR", "OPERATOR_NOT"}
_TESTS = {"COMPARE_IN", "COMPARE_NOT_IN", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"}
# Schemas that are DuckDB's own. A dataset may be in one of that name, and is found elsewhere.
_SYSTEM = {"main", "temp", "system", "memory", "information_schema", "pg_catalog", "recurring"}


@dataclass(frozen=True, slots=True)
class Ref:
    """A dataset that a statement names: `finance.tx AT (VERSION => 3)`."""

    schema: str
    table: str
    version: int | None = None

    @property
    def key(self) -> "Ref":
        """The same for names that differ only in case."""
        return Ref(self.schema.lower(), self.table.lower(), self.version)

    @property
    def home(self) -> str:
        """The schema in which DuckDB finds it. The sign @ is in no dataset's name, so this one is free."""
        if self.version is None and self.schema.lower() not in _SYSTEM:
            return self.schema
        return f"{self.schema}@{'' if self.version is None else self.version}"


@dataclass(frozen=True, slots=True)
class Parsed:
    tables: tuple[Ref, ...]
    parameters: tuple[str, ...]
    only_compared: bool = True  # are parameters used in nothing but tests, so that no column's type depends on them?
    repeatable: bool = True  # does it answer the same when it is asked again?
    select: str = ""  # the statement as DuckDB writes it


@dataclass(slots=True)
class Reading:
    tables: dict[Ref, Ref] = field(default_factory=dict)  # by key, in the order in which they are named
    columns: set[str] = field(default_factory=set)  # every word that could be a column's name
    parameters: tuple[str, ...] = ()
    places: int = 0  # where parameters are used
    tests: int = 0  # those of them in which one is only compared
    repeatable: bool = True

    @property
    def parsed(self) -> Parsed:
        only_compared = self.places == self.tests
        return Parsed(tuple(self.tables.values()), self.parameters, only_compared, self.repeatable)


def only(told: Tree) -> Tree:
    """The one SELECT of what `json_serialize_sql` tells."""
    if told["error"]:
        if told["error_type"] == "not implemented" and "SELECT" in told["error_message"]:
            raise _not_one_select()
        if "expression depth" in told["error_message"]:
            raise _too_deep()
        place = told.get("position")
        at = {"position": int(place)} if place is not None and place.isdigit() else {}
        raise Invalid("bad_sql", f"the statement cannot be read: {told['error_message'].partition(chr(10))[0]}", **at)
    if len(told["statements"]) != 1:
        raise _not_one_select()
    (statement,) = told["statements"]
    return statement  # type: ignore[no-any-return]


def reading(statement: Tree) -> Reading:
    """What the statement names. Datasets that are to be found elsewhere get their place written into the tree."""
    found = Reading()
    try:
        _walk(statement, frozenset(), found)
    except RecursionError:
        raise _too_deep() from None
    found.parameters = tuple(entry["key"] for entry in statement["named_param_map"])
    if unnamed := [name for name in found.parameters if name.isdigit()]:
        raise Invalid("bad_sql", f"parameter ${unnamed[0]} has no name; write $region rather than ? or $1")
    return found


def _walk(node: Any, ctes: frozenset[str], found: Reading) -> None:
    if isinstance(node, list):
        for inner in node:
            _walk(inner, ctes, found)
    if not isinstance(node, dict):
        return
    match node.get("class"):
        case None:
            _check_clause(node, ctes, found)
        case "FUNCTION" | "WINDOW":
            _check_function(node, found)
        case "COLUMN_REF":
            words = [*map(str.lower, node["column_names"])]
            found.columns.update(words)
            found.repeatable &= words[0] not in VOLATILE_WORDS
        case "PARAMETER":
            found.places += 1
    for name, inner, seen in _parts(node, ctes):
        if name == "using_columns":
            found.columns.update(map(str.lower, inner))
        _walk(inner, seen, found)


def _parts(node: Tree, ctes: frozenset[str]) -> Iterator[tuple[str, Any, frozenset[str]]]:
    """What a node holds, and the names of WITH that are known there: a name is known to those that follow it."""
    if cte_map := node.get("cte_map"):
        for entry in cte_map["map"]:
            yield "cte", entry["value"], ctes
            ctes = ctes | {entry["key"].lower()}
    if "cte_name" in node:  # a recursive one knows itself
        ctes = ctes | {node["cte_name"].lower()}
    for name, inner in node.items():
        if name != "cte_map" and isinstance(inner, dict | list):
            yield name, inner, ctes


def _check_clause(node: Tree, ctes: frozenset[str], found: Reading) -> None:
    kind = node.get("type")
    if not isinstance(kind, str):
        return
    found.repeatable &= not node.get("sample")
    found.tests += sum(_compared(node[name]) for name in _CONDITIONS if node.get(name))
    if kind == "TABLE_FUNCTION":
        name = node["function"].get("function_name", "").lower()
        if name not in _TABLE_FUNCTIONS:
            raise Invalid(
                "bad_sql",
                f"the table function {name!r} is not available; those that are: {', '.join(sorted(_TABLE_FUNCTIONS))}",
            )
    elif kind == "BASE_TABLE":
        _note_table(node, ctes, found)
    elif kind not in _CLAUSES and not kind.endswith("_TYPE_INFO"):
        raise Invalid("not_one_select", f"a query only selects from datasets; {kind.lower()} is not available in it")


def _compared(node: Tree) -> int:
    """How many parameters a condition does nothing with but compare them.

    Elsewhere it is not enough that they are compared: `round(amount, ($n > 1)::INT)` has a type that depends on $n.
    """
    match node:
        case {"type": kind, "children": children} if kind in _LOGIC:
            return sum(map(_compared, children))
        case {"class": "COMPARISON", "left": left, "right": right}:
            operands = [left, right]
        case {"class": "BETWEEN", "input": asked, "lower": lower, "upper": upper}:
            operands = [asked, lower, upper]
        case {"type": kind, "children": operands} if kind in _TESTS:
            pass
        case _:
            return 0
    return sum(operand["class"] == "PARAMETER" for operand in operands)


def _check_function(node: Tree, found: Reading) -> None:
    name = node["function_name"].lower()
    found.repeatable &= name not in VOLATILE
    if name in _UNSAFE or name.startswith("__internal") or node.get("export_state"):
        raise Invalid("bad_sql", f"the function {name!r} is not available in a query")


def _note_table(node: Tree, ctes: frozenset[str], found: Reading) -> None:
    path = node["qualified_name"]["path"]
    if len(path) == 1 and path[0].lower() in ctes:
        return
    if len(path) != 2:
        name = ".".join(path)
        raise NotFound("dataset_not_found", f"there is no dataset {name!r}; write schema.table", dataset=name)
    ref = Ref(path[0], path[1], _version(node))
    ref = found.tables.setdefault(ref.key, ref)
    if ref.home != ref.schema:
        node["alias"] = node["alias"] or node["table_name"]
        node["schema_name"], node["at_clause"] = ref.home, None
        node["qualified_name"] = {"path": [ref.home, node["table_name"]]}


def _version(node: Tree) -> int | None:
    clause = node["at_clause"]
    if clause is None:
        return None
    match clause:
        case {"unit": str(unit), "expr": {"literal": {"kind": "INTEGER", "text": str(text)}}} if (
            unit.upper() == "VERSION" and text.isdecimal()
        ):
            return int(text)
    raise Invalid("bad_sql", "a dataset's version is a whole number: finance.tx AS t AT (VERSION => 3)")


def _not_one_select() -> Invalid:
    return Invalid("not_one_select", "a query is one SELECT statement, and nothing else")


def _too_deep() -> Invalid:
    return Invalid("bad_sql", "the statement is nested too deeply; take it apart with WITH")
