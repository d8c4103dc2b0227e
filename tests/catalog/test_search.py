"""One filter finds the same rows, in the same order, on every database: those that the oracle finds."""

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

from catalog import odata_oracle as oracle
from catalog.odata_cases import CASES, FIELDS, ROWS
from conftest import SOAK
from penstock.catalog import tables
from penstock.catalog.database import Database, keeps_to_the_tenant, mine
from penstock.catalog.odata_sql import Cased, Children, Columns, containing, order, slotted, where
from penstock.catalog.tables import Instant
from penstock.core.odata import Collection, Fields, Kind, Options, options, parse
from penstock.lake import Dataset, Lake

TENANT, OTHER = UUID(int=7), UUID(int=8)

# A locale that orders and folds as people do: what is asked must not depend on it.
Words = Text().with_variant(Text(collation="en-x-icu"), "postgresql")

metadata = MetaData()
things = Table(
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
    Column("at", Instant),
    Column("day", Date),
    prefixes=["TEMPORARY"],
)
tags = Table(
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
    **{name: things.c[name] for name in ("k", "note", "n", "x", "flag", "id", "at", "day")},
    "name": Cased(things.c.name, things.c.name_lower, things.c.name_upper),
    "tags": Children(
        tags,
        things.c.k,
        tags.c.thing,
        {"label": Cased(tags.c.label, tags.c.label_lower, tags.c.label_upper), "size": tags.c.size},
    ),
}


@contextmanager
def filled(where: str | Path) -> Iterator[Connection]:
    """A connection that sees the rows; another tenant has the same and a tag more on each."""
    db = Database(where)
    with db.raw() as connection:
        metadata.create_all(connection)
        for tenant in (TENANT, OTHER):
            for row in ROWS:
                stolen = [{"label": "stolen", "size": 1}] * (tenant == OTHER)
                own = {name: value for name, value in row.items() if name != "tags"}
                connection.execute(insert(things), cased(own, "name") | {"tenant_id": tenant})
                for tag in row["tags"] + stolen:
                    connection.execute(insert(tags), cased(tag, "label") | {"tenant_id": tenant, "thing": row["k"]})
        yield connection
    db.close()


def cased(row: dict[str, Any], name: str) -> dict[str, Any]:
    text = row[name]
    return row | {f"{name}_lower": text and text.lower(), f"{name}_upper": text and text.upper()}


@pytest.fixture(scope="module")
def on_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with filled(tmp_path_factory.mktemp("search") / "catalog.db") as connection:
        yield connection


@pytest.fixture(scope="module")
def on_postgresql(postgres_url: str) -> Iterator[Connection]:
    with filled(postgres_url) as connection:
        yield connection


@pytest.fixture(params=["sqlite", "postgresql"])
def db(request: pytest.FixtureRequest) -> Connection:
    connection: Connection = request.getfixturevalue(f"on_{request.param}")
    return connection


def asked(text: str) -> Select[tuple[int]]:
    return select(things.c.k).where(mine(things), where(parse(text, FIELDS), COLUMNS)).order_by(things.c.k)


def found(db: Connection, statement: Select[tuple[int]]) -> list[int]:
    return list(db.execute(statement, {"tenant": TENANT}).scalars())


@pytest.mark.parametrize("text", CASES)
def test_a_filter_keeps_these_rows(db: Connection, text: str) -> None:
    assert found(db, asked(text)) == CASES[text]


@pytest.mark.parametrize("text", CASES)
def test_not_keeps_the_other_rows(db: Connection, text: str) -> None:
    assert found(db, asked(f"not ({text})")) == [row["k"] for row in ROWS if row["k"] not in CASES[text]]


# A boolean field is a value, which is compared as it is: null is not false.
@pytest.mark.parametrize("text", [text for text in CASES if text.strip("()") != "flag"])
def test_what_does_not_hold_equals_false(db: Connection, text: str) -> None:
    assert found(db, asked(f"({text}) eq false")) == [row["k"] for row in ROWS if row["k"] not in CASES[text]]


@settings(max_examples=2_000 if SOAK else 150)
@given(spec=oracle.filters())
def test_random_filters_find_what_the_oracle_finds(
    on_sqlite: Connection, on_postgresql: Connection, spec: oracle.Spec
) -> None:
    text = oracle.written(spec)
    expected = [row["k"] for row in ROWS if oracle.holds(spec, row)]
    assert found(on_sqlite, asked(text)) == expected, text
    assert found(on_postgresql, asked(text)) == expected, text


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
def test_large_filters_are_read_by_both_databases(db: Connection, name: str) -> None:
    text, expected = LARGE[name]
    assert found(db, asked(text)) == expected


@settings(max_examples=300 if SOAK else 30)
@given(data=st.data())
def test_deep_filters_are_read_by_sqlite(on_sqlite: Connection, data: st.DataObject) -> None:
    """It has the smaller appetite of the two: its reader's stack holds a hundred things."""
    spec: oracle.Spec = ("flag", "flag")
    draws = data.draw(
        st.lists(st.tuples(st.sampled_from(["and", "or"]), st.integers(0, 3), st.booleans()), min_size=30, max_size=48)
    )
    for op, place, several in draws:
        parts = [("eq", ("field", "n"), ("literal", place))] * (1 + 2 * several)
        parts.insert(place, spec)
        spec = (op, parts)
    text = oracle.written(spec)
    assert found(on_sqlite, asked(text)) == [row["k"] for row in ROWS if oracle.holds(spec, row)]


ORDERS = ["name", "name desc", "note, k desc", "n", "n desc", "x desc, n", "flag, name", "flag desc", "id", "id desc",
          "at", "at desc, day", "day desc", "k desc"]  # fmt: skip


@pytest.mark.parametrize("text", ORDERS)
def test_order_is_by_code_point_with_null_lowest(db: Connection, text: str) -> None:
    by = read(("$orderby", text)).orderby

    def compared(one: dict[str, Any], other: dict[str, Any]) -> int:
        for column in by:
            a, b = ((row[column.field.name] is not None, row[column.field.name]) for row in (one, other))
            if a != b and (a[0] or b[0]):
                return 1 if (a > b) != column.descending else -1
        return one["k"] - other["k"]

    statement = select(things.c.k).where(mine(things)).order_by(*order(by, COLUMNS, [things.c.k]))
    assert found(db, statement) == [row["k"] for row in sorted(ROWS, key=cmp_to_key(compared))]


def test_pages_of_an_order_make_the_whole(db: Connection) -> None:
    statement = (
        select(things.c.k)
        .where(mine(things))
        .order_by(*order(read(("$orderby", "flag")).orderby, COLUMNS, [things.c.k]))
    )
    pages = [found(db, statement.limit(3).offset(skip)) for skip in range(0, 18, 3)]
    assert [k for page in pages for k in page] == [3, 6, 10, 11, 14, 2, 5, 8, 12, 1, 4, 7, 9, 13]


def test_a_column_that_is_never_null_is_ordered_as_its_index_is() -> None:
    by = read(("$orderby", "k desc")).orderby
    assert [str(one) for one in order(by, COLUMNS, [things.c.k])] == ["things.k DESC"]


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
def test_a_search_finds_all_words_in_any_case(db: Connection, text: str) -> None:
    name = COLUMNS["name"]
    assert isinstance(name, Cased)
    words = read(("$search", text)).search
    assert (
        found(db, select(things.c.k).where(mine(things), containing(words, [name])).order_by(things.c.k))
        == SEARCHES[text]
    )


def test_no_words_are_found_everywhere(db: Connection) -> None:
    assert len(found(db, select(things.c.k).where(mine(things), containing((), [])))) == len(ROWS)


@pytest.mark.parametrize("dialect", [sqlite.dialect(), postgresql.dialect()], ids=["sqlite", "postgresql"])
def test_nothing_that_was_written_becomes_sql(dialect: Any) -> None:
    word, number, guid = "marked'--", 31337, UUID("31337313-3731-3373-1337-313373133731")
    text = (
        f"name eq 'marked''--' or contains(tolower(note), 'marked''--') or n in ({number}, {number}) or id eq {guid} "
        f"or n gt {number}.5 or tags/any(t: t/label eq 'marked''--' and t/size lt {number}) or at eq 3133-07-31T00:00:00Z"
    )
    sql = str(asked(text).compile(dialect=dialect))
    assert not re.search("marked|31337|3133", sql)
    assert word not in sql


VERSIONED: Fields = {
    "name": Kind.TEXT,
    "read_only": Kind.BOOLEAN,
    "versions": Collection({"operation": Kind.TEXT, "rows": Kind.INTEGER}),
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
def test_a_search_of_the_catalog_keeps_to_the_tenant(
    lake: Lake, stranger: Lake, numbers: Dataset, text: str, names: list[str]
) -> None:
    numbers.append({"id": [4], "word": ["four"]})
    lake.create("demo.other", {"id": [1]})
    stranger.create("demo.theirs", {"id": list(range(9))})
    datasets = tables.datasets
    statement = (
        select(datasets.c.table_name)
        .where(mine(datasets), where(parse(text, VERSIONED), VERSIONED_COLUMNS))
        .order_by(*order((), VERSIONED_COLUMNS, [datasets.c.table_name]))
    )
    with lake.workspace.db.read(lake.caller) as tx:
        assert [row.table_name for row in tx.all(statement)] == names


def test_a_lambda_without_the_tenant_condition_would_be_stopped() -> None:
    """The guard counts the conditions of the lambdas too."""
    statement = select(tables.datasets.c.table_name).where(
        mine(tables.datasets),
        where(parse("versions/any() and versions/any(v: v/rows eq 1)", VERSIONED), VERSIONED_COLUMNS),
    )
    sql = str(statement.compile(dialect=sqlite.dialect()))
    assert keeps_to_the_tenant(sql)
    assert not keeps_to_the_tenant(sql.replace("dataset_versions.tenant_id = ?", "1", 1))


def read(*pairs: tuple[str, str]) -> Options:
    return options(pairs, FIELDS, default_top=50, max_top=200)


@pytest.mark.parametrize("text", [
    "name eq 'Oslo' and n gt 3", "not contains(name, '%') or n in (1, 2) and x le 2.5", "flag eq true or note eq null",
    "tags/any(t: t/label eq 'a' and t/size gt 1) and not (day lt 2026-01-31)", "at ge 2026-01-31T00:00:00Z", "true",
])  # fmt: skip
def test_filters_of_one_shape_share_a_statement_and_lose_no_value(text: str) -> None:
    node = parse(text, FIELDS)
    shape, values = slotted(node)
    plain = where(node, COLUMNS).compile(dialect=sqlite.dialect())
    shared = where(shape, COLUMNS).compile(dialect=sqlite.dialect())
    assert str(shared) == str(plain)
    assert sorted(map(str, (shared.params | values).values())) == sorted(map(str, plain.params.values()))
    other, _ = slotted(parse(text.replace("Oslo", "Lima").replace("gt 3", "gt 4").replace("2.5", "7.5"), FIELDS))
    assert other == shape
