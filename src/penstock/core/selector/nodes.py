"""Syntax tree of the filter expression language, as frozen nodes."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

MAX_LENGTH = 10_000  # characters of text
MAX_NODES = 2_000
MAX_DEPTH = 100  # of the tree and of parentheses, so that functions over the tree may recurse
MAX_STEPS = 10_000  # of evaluation; a part that is used twice is evaluated twice
MAX_DIGITS = 76  # the widest decimal of Arrow


class Comparison(Enum):
    EQ = "="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="


class ArithmeticOperator(Enum):
    ADD = "+"
    SUBTRACT = "-"
    MULTIPLY = "*"
    DIVIDE = "/"


class Wildcard(Enum):
    ANY = "%"  # any text, also none
    ONE = "_"  # one character


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: Any = None  # here and below: None until bound


@dataclass(frozen=True, slots=True)
class Literal:
    value: Any  # None, bool, int, Decimal, float, str, date or datetime
    type: Any = None


@dataclass(frozen=True, slots=True)
class Arithmetic:
    op: ArithmeticOperator
    left: "Node"
    right: "Node"
    type: Any = None


@dataclass(frozen=True, slots=True)
class Cast:
    """The operand, cast to the common type of both sides. Created only by `bind`."""

    operand: "Node"
    type: Any


@dataclass(frozen=True, slots=True)
class Compare:
    op: Comparison
    left: "Node"
    right: "Node"


@dataclass(frozen=True, slots=True)
class Between:
    operand: "Node"
    low: "Node"
    high: "Node"


@dataclass(frozen=True, slots=True)
class In:
    operand: "Node"
    items: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class Like:
    operand: "Node"
    pattern: tuple[str | Wildcard, ...]  # plain text and wildcards, with escapes resolved


@dataclass(frozen=True, slots=True)
class IsNull:
    operand: "Node"


@dataclass(frozen=True, slots=True)
class Not:
    operand: "Node"


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple["Node", ...]  # flat, so that a long chain is not a deep tree


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple["Node", ...]


Node: TypeAlias = Column | Literal | Arithmetic | Cast | Compare | Between | In | Like | IsNull | Not | And | Or


@dataclass(frozen=True, slots=True)
class Interval:
    """A closed interval; None is an open end. Empty if low > high. NULL and NaN lie in no interval."""

    low: Any
    high: Any


def columns(node: Node) -> frozenset[str]:
    return frozenset(part.name for part, _ in walk(node) if isinstance(part, Column))


def walk(node: Node) -> Iterator[tuple[Node, int]]:
    """Yield every node with its depth, in the order of the text. Not recursive, because it also checks the depth."""
    stack = [(node, 0)]
    while stack:
        part, depth = stack.pop()
        yield part, depth
        stack += [(child, depth + 1) for child in reversed(_child_nodes(part))]


def _child_nodes(node: Node) -> tuple[Node, ...]:
    match node:
        case Column() | Literal():
            return ()
        case And(parts) | Or(parts):
            return parts
        case Compare(_, left, right) | Arithmetic(_, left, right):
            return left, right
        case Between(operand, low, high):
            return operand, low, high
        case In(operand, items):
            return operand, *items
        case Not(operand) | IsNull(operand) | Like(operand) | Cast(operand):
            return (operand,)


def steps(node: Node) -> int:
    """Count the evaluation steps. Engines evaluate a divisor, and the left side of IN and BETWEEN, twice."""
    counts = [steps(child) for child in _child_nodes(node)]
    match node:
        case Between() | In():
            counts.append(counts[0])
        case Arithmetic(ArithmeticOperator.DIVIDE):
            counts.append(counts[-1])
    return 1 + sum(counts)
