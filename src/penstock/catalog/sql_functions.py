"""SQL functions and types that behave the same on SQLite and PostgreSQL."""

from decimal import Decimal
from typing import Any

from sqlalchemy import Dialect, Float, Integer, Numeric, Text, TypeDecorator
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.type_api import TypeEngine


class NearestDouble(TypeDecorator[Any]):
    """A number as its nearest double. PostgreSQL receives a decimal, which it compares exactly with integers."""

    impl = Float
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Float() if dialect.name == "sqlite" else Numeric())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return float(value) if dialect.name == "sqlite" else Decimal(repr(float(value)))


class Unindexed(FunctionElement[Any]):
    """A column to order by that keeps SQLite from using the index of that order instead of a better one."""

    inherit_cache = True


class CodePoints(FunctionElement[str]):
    """Text that is compared, ordered and folded by code point, independent of the locale of the database."""

    type = Text()
    inherit_cache = True


class TextPosition(FunctionElement[int]):
    """The position of the second text in the first, from 1; 0 if it does not occur."""

    type = Integer()
    inherit_cache = True


@compiles(Unindexed, "sqlite")
def _unindexed_on_sqlite(element: Unindexed, compiler: SQLCompiler, **kw: Any) -> str:
    return f"+{compiler.process(element.clauses, **kw)}"


@compiles(Unindexed, "postgresql")
def _unindexed_on_postgresql(element: Unindexed, compiler: SQLCompiler, **kw: Any) -> str:
    return compiler.process(element.clauses, **kw)


@compiles(CodePoints, "sqlite")
def _code_points_on_sqlite(element: CodePoints, compiler: SQLCompiler, **kw: Any) -> str:
    return f"({compiler.process(element.clauses, **kw)}) COLLATE BINARY"


@compiles(CodePoints, "postgresql")
def _code_points_on_postgresql(element: CodePoints, compiler: SQLCompiler, **kw: Any) -> str:
    return f'({compiler.process(element.clauses, **kw)}) COLLATE "C"'


@compiles(TextPosition, "sqlite")
def _position_on_sqlite(element: TextPosition, compiler: SQLCompiler, **kw: Any) -> str:
    return f"instr({compiler.process(element.clauses, **kw)})"


@compiles(TextPosition, "postgresql")
def _position_on_postgresql(element: TextPosition, compiler: SQLCompiler, **kw: Any) -> str:
    return f"strpos({compiler.process(element.clauses, **kw)})"
