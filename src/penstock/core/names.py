"""What datasets and columns may be called, how an id is written, and what text can be kept at all."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from penstock.errors import Invalid

MAX_NAME = 128  # characters of a schema's or a table's name
MAX_COLUMN = 255  # characters of a column's name
MAX_COLUMNS = 4_096
ROWID = "rowid"  # how a row's id is called in results
CARRIED = "_rowid"  # the hidden column in which a rewritten file keeps the ids of its rows

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_RESERVED = {ROWID, CARRIED}
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")  # one spelling: not all that UUID() reads
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class DatasetName:
    """`finance.transactions`: a schema and a table. Case is kept, and ignored when comparing."""

    schema: str
    table: str

    def __post_init__(self) -> None:
        for part, word in (("schema", self.schema), ("table", self.table)):
            if len(word) > MAX_NAME:
                raise Invalid(
                    "bad_dataset_name", f"the {part} name has {len(word)} characters; at most {MAX_NAME} are allowed"
                )
            if not _WORD.match(word):
                raise Invalid(
                    "bad_dataset_name",
                    f"{_shown(word)} is no {part} name: use letters, digits and _, and start with a letter or _",
                    name=_shown(word),
                )

    @classmethod
    def parse(cls, text: str) -> "DatasetName":
        schema, dot, table = text.partition(".")
        if not dot:
            raise Invalid(
                "bad_dataset_name",
                f"{_shown(text)} names no table: write schema.table, as in finance.transactions",
                name=_shown(text),
            )
        return cls(schema, table)

    @property
    def key(self) -> str:
        """What two names that differ only in case have in common."""
        return str(self).lower()

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


def uuid(text: str) -> UUID | None:
    """The id that a text is; None: it is none."""
    return UUID(text) if _UUID.fullmatch(text) else None


def unstorable(text: str) -> bool:
    """Does it hold a character that PostgreSQL or UTF-8 cannot: NUL, or half of a surrogate pair?"""
    return _UNSTORABLE.search(text) is not None


def check_columns(names: Sequence[str], *, reserved: bool = True) -> None:
    """Refuse names that some reader of the files (Spark, DuckDB, SQL) could not tell apart or not say.

    And those that are Penstock's own in a dataset, unless `reserved` says otherwise.
    """
    if not names:
        raise Invalid("no_columns", "a dataset needs at least one column")
    if len(names) > MAX_COLUMNS:
        raise Invalid("too_many_columns", f"{len(names)} columns; at most {MAX_COLUMNS} are allowed")
    seen: dict[str, str] = {}
    for name in names:
        if not name.strip() or len(name) > MAX_COLUMN or not name.isprintable():
            raise Invalid(
                "bad_column_name",
                f"{_shown(name)} is no column name: use 1 to {MAX_COLUMN} printable characters",
                column=_shown(name),
            )
        folded = name.lower()
        if reserved and folded in _RESERVED:
            raise Invalid(
                "reserved_column_name",
                f"column {name!r}: the names rowid and _rowid are Penstock's own; rename the column",
                column=name,
            )
        if folded in seen:
            raise Invalid(
                "doubled_column_name",
                f"columns {seen[folded]!r} and {name!r} are the same name to Spark and DuckDB; rename one",
                columns=[seen[folded], name],
            )
        seen[folded] = name


def _shown(text: str) -> str:
    """A name from outside, safe to print: quoted, escaped and cut."""
    return ascii(text[:60]) + ("…" if len(text) > 60 else "")
