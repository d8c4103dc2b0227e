"""OData filters and orders on both databases return the rows of the oracle."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cmp_to_key
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Date,
    Double,
    Integer,
    MetaData,
    Select,
    Table,
    Text,
    Uuid,
    insert,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite

from catalog import odata_oracle
from catalog.odata_cases import CASES, FIELDS, ROWS, null_rows
from conftest import examples
from penstock.catalog import tables
from penstock.catalog.database import Database
from penstock.catalog.odata_sql import Children, Columns, FoldedText, filter_condition, parameterize, search_condition
from penstock.catalog.search_statements import prepare_search, sort_keys
from penstock.catalog.tables import UtcTimestamp
from penstock.catalog.tenant_guard import has_tenant_filter, tenant_filter
from penstock.core.odata import Collection, FieldKind, Fields, OrderBy, QueryOptions, options, parse
from penstock.lake import Dataset, Lake

TENANT, OTHER = UUID(int=7), UUID(int=8)

# A locale with its own order and case folding: results must not depend on it.
Words = Text().with_variant(Text(collation="en-x-icu"), "postgresql")

metadata = MetaData()
items_table = Table(
    "things",
    metadata,
    Column("tenant_id", Uuid, nullable=False),
    Column("k", Integer, nullable=False),
    Column("name", Words),
    Column("name_lower", Words),
    Column("name_upper", Words),
    Column("note", Words),
    Column("n", BigInteger),
    Column("x", Double),
    Column("flag", Boolean),
    Column("id", Uuid),
    Column("at", UtcTimestamp),
    Column("day", Date),
    prefixes=["TEMPORARY"],
)
tags_table = Table(
    "tags",
    metadata,
    Column("tenant_id", Uuid, nullable=False),
    Column("thing", Integer, nullable=False),
    Column("label", Words),
    Column("label_lower", Words),
    Column("label_upper", Words),
    Column("size", Integer),
    prefixes=["TEMPORARY"],
)
COLUMNS: Columns = {
    **{name: items_table.c[name] for name in ("k", "note", "n", "x", "flag", "id", "at", "day")},
    "name": FoldedText(items_table.c.name, items_table.c.name_lower, items_table.c.name_upper),
    "tags": Children(
        tags_table,
        items_table.c.k,
        tags_table.c.thing,
        {
            "label": FoldedText(tags_table.c.label, tags_table.c.label_lower, tags_table.c.label_upper),
            "size": tags_table.c.size,
        },
    ),
}


@contextmanager
def connect_with_rows(target: str | Path) -> Iterator[Connection]:
    """Yield a connection to the rows; another tenant has the same rows with one more tag on each."""
    db = Database(target)
    with db.connect_without_tenant() as connection:
        metadata.create_all(connection)
        for tenant in (TENANT, OTHER):
            for row in ROWS:
                foreign_tags = [{"label": "stolen", "size": 1}] * (tenant == OTHER)
                columns = {name: value for name, value in row.items() if name != "tags"}
                connection.execute(insert(items_table), with_folded(columns, "name") | {"tenant_id": tenant})
                for tag in row["tags"] + foreign_tags:
                    connection.execute(
                        insert(tags_table), with_folded(tag, "label") | {"tenant_id": tenant, "thing": row["k"]}
                    )
        yield connection
    db.close()


def with_folded(row: dict[str, Any], name: str) -> dict[str, Any]:
    text = row[name]
    return row | {f"{name}_lower": text and text.lower(), f"{name}_upper": text and text.upper()}


@pytest.fixture(scope="module")
def on_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with connect_with_rows(tmp_path_factory.mktemp("search") / "catalog.db") as connection:
        yield connection


@pytest.fixture(scope="module")
def on_postgresql(postgres_url: str) -> Iterator[Connection]:
    with connect_with_rows(postgres_url) as connection:
        yield connection


@pytest.fixture(params=["sqlite", "postgresql"])
def db(request: pytest.FixtureRequest) -> Connection:
    connection: Connection = request.getfixturevalue(f"on_{request.param}")
    return connection


def filter_statement(text: str) -> Select[tuple[int]]:
    return (
        select(items_table.c.k)
        .where(tenant_filter(items_table), filter_condition(parse(text, FIELDS), COLUMNS))
        .order_by(items_table.c.k)
    )


def select_keys(db: Connection, statement: Select[tuple[int]]) -> list[int]:
    return list(db.execute(statement, {"tenant": TENANT}).scalars())


@pytest.mark.parametrize("text", CASES)
def test_filter_condition_returns_the_expected_rows(db: Connection, text: str) -> None:
    assert select_keys(db, filter_statement(text)) == CASES[text]


@pytest.mark.parametrize("text", CASES)
def test_condition_is_true_false_or_null_for_every_row(db: Connection, text: str) -> None:
    unmatched = [row["k"] for row in ROWS if row["k"] not in CASES[text]]
    assert select_keys(db, filter_statement(f"({text}) ne true")) == unmatched
    is_false, is_null = (select_keys(db, filter_statement(f"({text}) eq {value}")) for value in ("false", "null"))
    assert sorted(is_false + is_null) == unmatched
    assert select_keys(db, filter_statement(f"not ({text})")) == is_false


@pytest.mark.parametrize("text", CASES)
def test_condition_equals_false_where_it_is_neither_true_nor_null(db: Connection, text: str) -> None:
    nulls = null_rows(text)
    others = [row["k"] for row in ROWS if row["k"] not in CASES[text] + nulls]
    assert select_keys(db, filter_statement(f"({text}) eq null")) == nulls
    assert select_keys(db, filter_statement(f"({text}) eq false")) == others


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("not contains(note, 'a')", [2, 4, 5, 7, 8, 10, 12, 13, 14]),
        ("contains(note, 'a') eq false", [2, 4, 5, 7, 8, 10, 12, 13, 14]),
        ("contains(note, 'a') eq null", [6, 11]),
        ("not flag", [2, 5, 8, 12]),
        ("not (flag and n gt 2)", [1, 2, 3, 4, 5, 6, 8, 10, 11, 12]),
        ("not (flag or n gt 2)", [2]),
        ("tags/all(t: contains(t/label, 'r'))", [3, 5, 6, 7, 14]),
        ("not tags/all(t: contains(t/label, 'r'))", [1, 2, 4, 8, 9, 10, 11, 12, 13]),
    ],
)
def test_functions_and_fields_that_are_null_keep_no_row(db: Connection, text: str, expected: list[int]) -> None:
    assert select_keys(db, filter_statement(text)) == expected


@settings(max_examples=examples(150, soak=2_000))
@given(spec=odata_oracle.draw_filter())
def test_random_filters_return_the_rows_of_the_oracle(
    on_sqlite: Connection, on_postgresql: Connection, spec: odata_oracle.Spec
) -> None:
    text = odata_oracle.to_text(spec)
    expected = [row["k"] for row in ROWS if odata_oracle.is_true(spec, row)]
    assert select_keys(on_sqlite, filter_statement(text)) == expected, text
    assert select_keys(on_postgresql, filter_statement(text)) == expected, text


@pytest.mark.parametrize("function", ["tolower", "toupper"])
@pytest.mark.parametrize("name", ["name", "note"])
def test_folded_text_equals_its_own_folded_literal(db: Connection, function: str, name: str) -> None:
    for row in ROWS:
        if (text := row[name]) is None or row["k"] == odata_oracle.LONG:
            continue
        folded = f"{function}({odata_oracle.literal(text)})"
        for condition in (
            f"{function}({name}) eq {folded}",
            f"{function}({name}) in ('x', {folded})",
            f"startswith({function}({name}), {folded})",
        ):
            assert row["k"] in select_keys(db, filter_statement(condition)), condition


LARGE: dict[str, tuple[str, list[int]]] = {
    "a thousand terms": (" or ".join(["n eq 1"] * 1000), [1]),
    "a thousand other terms": (" or ".join(f"n eq {i}" for i in range(700)), [1, 2, 4, 7, 8, 9, 12, 13, 14]),
    "a thousand ands": (" and ".join(["n gt 0"] * 900), [1, 2, 5, 7, 8, 9, 12, 13, 14]),
    "a thousand terms turned around": (f"not ({' or '.join(['n ne 1'] * 900)})", [1]),
    "a list of five hundred": (f"n in ({','.join(map(str, range(500)))})", [1, 2, 4, 7, 8, 9, 12, 13, 14]),
    "not in a list of five hundred": (f"not (n in ({','.join(map(str, range(500)))}))", [3, 5, 6, 10, 11]),
    "three lists of five hundred": (" or ".join([f"n in ({','.join(map(str, range(500)))})"] * 3), [1, 2, 4, 7, 8, 9, 12, 13, 14]),
    "twenty lambdas": (" and ".join(["tags/any(t: t/label eq 'red')"] * 20), [1, 5, 14]),
    "one long word": (f"contains(name, '{'x' * 4999}E') or endswith(name, '{'x' * 4000}END')", [12]),
    "parentheses": ("(" * 99 + "n eq 1" + ")" * 99, [1]),
    "nots": ("not " * 100 + "flag", [1, 4, 7, 9, 13]),
    "nots and parentheses": ("not (" * 48 + "n eq 1" + ")" * 48, [1]),
    "and in or, on the right": ("n eq 1 or (flag and (" * 24 + "n eq 1" + "))" * 24, [1]),
    "or in and, on the right": ("n eq 1 and (flag or (" * 24 + "flag" + "))" * 24, [1]),
    "on the left": ("((" * 49 + "flag" + " or n eq 1) and flag)" * 49, [1, 4, 7, 9, 13]),
    "in the middle": ("(n eq 1 or flag and " * 32 + "flag" + " and flag or n eq 1)" * 32, [1, 4, 7, 9, 13]),
    "ors and nots": ("not (n eq 1 or " * 32 + "flag" + ")" * 32, [4, 7, 9, 13]),
    "deep in a lambda": (f"tags/any(t: {'(t/size eq 1 or flag and ' * 32}t/size gt 0{')' * 32})", [1, 7, 9, 12, 13]),
    "a lambda deep down": (f"{'(n eq 1 or flag and ' * 32}tags/any(t: t/size gt 0){')' * 32}", [1, 7, 9, 13]),
    "long chains deep down": (f"{'(' * 50}flag{' or n eq 1 or n eq 1 or n eq 1) and flag and flag and flag' * 50}", [1, 4, 7, 9, 13]),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_large_filters_are_accepted_by_both_databases(db: Connection, name: str) -> None:
    text, expected = LARGE[name]
    assert select_keys(db, filter_statement(text)) == expected


@settings(max_examples=examples(30, soak=300))
@given(data=st.data())
def test_deeply_nested_filters_are_accepted_by_sqlite(on_sqlite: Connection, data: st.DataObject) -> None:
    """SQLite has the lower limit of both databases: its parser stack holds a hundred entries."""
    spec: odata_oracle.Spec = ("flag", "flag")
    draws = data.draw(
        st.lists(st.tuples(st.sampled_from(["and", "or"]), st.integers(0, 3), st.booleans()), min_size=30, max_size=48)
    )
    for op, index, several in draws:
        parts = [("eq", ("field", "n"), ("literal", index))] * (1 + 2 * several)
        parts.insert(index, spec)
        spec = (op, parts)
    text = odata_oracle.to_text(spec)
    assert select_keys(on_sqlite, filter_statement(text)) == [
        row["k"] for row in ROWS if odata_oracle.is_true(spec, row)
    ]


def order(orderby: tuple[OrderBy, ...]) -> list[Any]:
    return [key.order() for key in sort_keys(orderby, COLUMNS, [items_table.c.k])]


ORDERS = ["name", "name desc", "note, k desc", "n", "n desc", "x desc, n", "flag, name", "flag desc", "id", "id desc",
          "at", "at desc, day", "day desc", "k desc"]  # fmt: skip


@pytest.mark.parametrize("text", ORDERS)
def test_order_is_by_code_point_with_null_lowest(db: Connection, text: str) -> None:
    order_by = read(("$orderby", text)).orderby

    def compare(first: dict[str, Any], second: dict[str, Any]) -> int:
        for column in order_by:
            a, b = ((row[column.field.name] is not None, row[column.field.name]) for row in (first, second))
            if a != b and (a[0] or b[0]):
                return 1 if (a > b) != column.descending else -1
        return first["k"] - second["k"]

    statement = select(items_table.c.k).where(tenant_filter(items_table)).order_by(*order(order_by))
    assert select_keys(db, statement) == [row["k"] for row in sorted(ROWS, key=cmp_to_key(compare))]


def test_pages_of_an_order_contain_every_row_once(db: Connection) -> None:
    statement = (
        select(items_table.c.k).where(tenant_filter(items_table)).order_by(*order(read(("$orderby", "flag")).orderby))
    )
    pages = [select_keys(db, statement.limit(3).offset(skip)) for skip in range(0, 18, 3)]
    assert [k for page in pages for k in page] == [3, 6, 10, 11, 14, 2, 5, 8, 12, 1, 4, 7, 9, 13]


@pytest.mark.parametrize("text", [*ORDERS, ""])
def test_position_of_a_row_is_followed_by_the_rows_after_it(db: Connection, text: str) -> None:
    keys = sort_keys(read(("$orderby", text)).orderby if text else (), COLUMNS, [items_table.c.k])
    statement = select(items_table.c.k).where(tenant_filter(items_table))
    parameters = {"tenant": TENANT, "page_limit": 1000, "page_offset": 0}
    rows = db.execute(prepare_search(statement, keys, None).page, parameters).all()
    for index, row in enumerate(rows):
        key = row[1:]
        page = prepare_search(statement, keys, tuple(value is None for value in key)).page
        values = {f"after{number}": value for number, value in enumerate(key) if value is not None}
        assert db.execute(page, {**parameters, **values}).all() == rows[index + 1 :]


def test_order_of_a_not_null_column_matches_its_index() -> None:
    order_by = read(("$orderby", "k desc")).orderby
    assert [str(expression) for expression in order(order_by)] == ["things.k DESC"]


SEARCHES = {
    "alpha": [1, 2, 3, 4],
    "ALPHA x1": [4],
    "strasse": [5, 6],
    "Straße": [5, 6],
    "ÄRGER": [7],
    '"drop table"': [13],
    '"table drop"': [],
    "table drop": [13],
    "%": [],
    "_1": [3],
    "ΣΊΣΥΦΟΣ": [14],
    "🦆": [9],
    " ".join(f"{'x' * i}" for i in range(1, 40)): [12],
}


@pytest.mark.parametrize("text", SEARCHES)
def test_search_condition_matches_all_words_in_any_case(db: Connection, text: str) -> None:
    name = COLUMNS["name"]
    assert isinstance(name, FoldedText)
    words = read(("$search", text)).search
    assert (
        select_keys(
            db,
            select(items_table.c.k)
            .where(tenant_filter(items_table), search_condition(words, [name]))
            .order_by(items_table.c.k),
        )
        == SEARCHES[text]
    )


def test_search_condition_without_words_matches_every_row(db: Connection) -> None:
    assert len(
        select_keys(db, select(items_table.c.k).where(tenant_filter(items_table), search_condition((), [])))
    ) == len(ROWS)


@pytest.mark.parametrize("dialect", [sqlite.dialect(), postgresql.dialect()], ids=["sqlite", "postgresql"])
def test_text_of_a_filter_never_becomes_sql_text(dialect: Any) -> None:
    word, number, guid = "marked'--", 31337, UUID("31337313-3731-3373-1337-313373133731")
    text = (
        f"name eq 'marked''--' or contains(tolower(note), 'marked''--') or n in ({number}, {number}) or id eq {guid} "
        f"or n gt {number}.5 or tags/any(t: t/label eq 'marked''--' and t/size lt {number}) or at eq 3133-07-31T00:00:00Z"
    )
    sql = str(filter_statement(text).compile(dialect=dialect))
    assert not re.search("marked|31337|3133", sql)
    assert word not in sql


VERSIONED: Fields = {
    "name": FieldKind.TEXT,
    "read_only": FieldKind.BOOLEAN,
    "versions": Collection({"operation": FieldKind.TEXT, "rows": FieldKind.INTEGER}),
}
VERSIONED_COLUMNS: Columns = {
    "name": tables.datasets.c.table_name,
    "read_only": tables.datasets.c.read_only,
    "versions": Children(
        tables.dataset_versions,
        tables.datasets.c.dataset_id,
        tables.dataset_versions.c.dataset_id,
        {"operation": tables.dataset_versions.c.operation, "rows": tables.dataset_versions.c.rows},
    ),
}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("true", ["numbers", "other"]),
        ("versions/any(v: v/operation eq 'append')", ["numbers"]),
        ("not versions/any(v: v/operation eq 'append')", ["other"]),
        ("versions/all(v: v/rows le 3) and not read_only", ["other"]),
        ("versions/any(v: v/rows eq 9)", []),
    ],
)
def test_search_is_limited_to_the_tenant(
    lake: Lake, other_tenant: Lake, three_rows: Dataset, text: str, names: list[str]
) -> None:
    three_rows.append({"id": [4], "word": ["four"]})
    lake.create("demo.other", {"id": [1]})
    other_tenant.create("demo.theirs", {"id": list(range(9))})
    datasets = tables.datasets
    statement = (
        select(datasets.c.table_name)
        .where(tenant_filter(datasets), filter_condition(parse(text, VERSIONED), VERSIONED_COLUMNS))
        .order_by(datasets.c.table_name)
    )
    with lake._workspace.db.read(lake.caller) as tx:
        assert [row.table_name for row in tx.all(statement)] == names


def test_subquery_without_the_tenant_condition_is_stopped() -> None:
    """The guard counts the conditions of the lambdas too."""
    statement = select(tables.datasets.c.table_name).where(
        tenant_filter(tables.datasets),
        filter_condition(parse("versions/any() and versions/any(v: v/rows eq 1)", VERSIONED), VERSIONED_COLUMNS),
    )
    sql = str(statement.compile(dialect=sqlite.dialect()))
    assert has_tenant_filter(sql)
    assert not has_tenant_filter(sql.replace("dataset_versions.tenant_id = ?", "1", 1))


def read(*pairs: tuple[str, str]) -> QueryOptions:
    return options(pairs, FIELDS, default_top=50, max_top=200)


@pytest.mark.parametrize("text", [
    "name eq 'Oslo' and n gt 3", "not contains(name, '%') or n in (1, 2) and x le 2.5", "flag eq true or note eq null",
    "tags/any(t: t/label eq 'a' and t/size gt 1) and not (day lt 2026-01-31)", "at ge 2026-01-31T00:00:00Z", "true",
])  # fmt: skip
def test_filters_of_one_shape_share_a_statement_and_lose_no_value(text: str) -> None:
    node = parse(text, FIELDS)
    shape, values = parameterize(node, COLUMNS)
    plain = filter_condition(node, COLUMNS).compile(dialect=sqlite.dialect())
    shared = filter_condition(shape, COLUMNS).compile(dialect=sqlite.dialect())
    assert str(shared) == str(plain)
    assert sorted(map(str, (shared.params | values).values())) == sorted(map(str, plain.params.values()))
    other, _ = parameterize(
        parse(text.replace("Oslo", "Lima").replace("gt 3", "gt 4").replace("2.5", "7.5"), FIELDS), COLUMNS
    )
    assert other == shape
