"""Parse and validate the names of datasets and columns, ids, and text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from penstock.errors import Invalid

MAX_NAME_LENGTH = 128  # of a namespace or a table
MAX_COLUMN_NAME_LENGTH = 255
MAX_COLUMNS = 4_096
ROW_ID_COLUMN = "rowid"  # the row id in results
STORED_ROW_ID_COLUMN = "_rowid"  # hidden column of rewritten files that stores the row ids

_NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_RESERVED = {ROW_ID_COLUMN, STORED_ROW_ID_COLUMN}
_UUID_PATTERN = re.compile(
    r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
)  # stricter than UUID(): one spelling only
_UNSTORABLE_CHARACTER = re.compile("[\x00\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class DatasetName:
    """A dataset name such as `finance.transactions`: namespace and table. Comparison ignores case."""

    schema: str
    table: str

    def __post_init__(self) -> None:
        for part, name in (("schema", self.schema), ("table", self.table)):
            if len(name) > MAX_NAME_LENGTH:
                raise Invalid(
                    "bad_dataset_name.too_long", {"part": part, "length": len(name), "max_length": MAX_NAME_LENGTH}
                )
            if not _NAME_PATTERN.match(name):
                raise Invalid(
                    "bad_dataset_name.characters",
                    {"part": part},
                    name=_printable(name),
                )

    @classmethod
    def parse(cls, text: str) -> "DatasetName":
        """Parse `namespace.table`."""
        schema, dot, table = text.partition(".")
        if not dot:
            raise Invalid(
                "bad_dataset_name.no_dot",
                name=_printable(text),
            )
        return cls(schema, table)

    @property
    def key(self) -> str:
        """Return the lower-case form, equal for names that differ only in case."""
        return str(self).lower()

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


def parse_uuid(text: str) -> UUID | None:
    """Parse a UUID in its canonical spelling; return None for any other text."""
    return UUID(text) if _UUID_PATTERN.fullmatch(text) else None


def parse_dataset_ref(text: str) -> UUID | DatasetName:
    """Parse a reference to a dataset: its id in the canonical spelling of a UUID, or its name.

    Raises:
        Invalid: the text is neither
    """
    return parse_uuid(text) or DatasetName.parse(text)


def has_invalid_characters(text: str) -> bool:
    """Check for characters that PostgreSQL or UTF-8 cannot store: NUL and unpaired surrogates."""
    return _UNSTORABLE_CHARACTER.search(text) is not None


def check_column_names(names: Sequence[str], *, reserved: bool = True) -> None:
    """Check column names for characters, length, number and uniqueness.

    Names that differ only in case are duplicates to Spark, DuckDB and SQL.

    Args:
        names: the column names of a schema
        reserved: whether the names of the row id columns are reserved, as in a dataset

    Raises:
        Invalid: a name is not allowed
    """
    if not names:
        raise Invalid("missing_columns.dataset")
    if len(names) > MAX_COLUMNS:
        raise Invalid(
            "too_many_columns",
            {"count": len(names), "max_columns": MAX_COLUMNS},
        )
    seen: dict[str, str] = {}
    for name in names:
        if not name.strip() or len(name) > MAX_COLUMN_NAME_LENGTH or not name.isprintable():
            raise Invalid(
                "bad_column_name.characters",
                {"max_length": MAX_COLUMN_NAME_LENGTH},
                column=_printable(name),
            )
        folded = name.lower()
        if reserved and folded in _RESERVED:
            raise Invalid(
                "reserved_column_name",
                {"name": name},
                column=name,
            )
        if folded in seen:
            raise Invalid(
                "duplicate_column_name",
                {"first": seen[folded], "second": name},
                columns=[seen[folded], name],
            )
        seen[folded] = name


def join_names(names: Sequence[str]) -> str:
    """Join names with commas for an error message: the first 20, and the number of the others."""
    joined = ", ".join(names[:20])
    return f"{joined} and {len(names) - 20} more" if len(names) > 20 else joined


def _printable(text: str) -> str:
    """Quote, escape and truncate a name for an error message."""
    return ascii(text[:60]) + ("…" if len(text) > 60 else "")
