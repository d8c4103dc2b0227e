"""A filter as a tree of frozen nodes, with every type settled."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

MAX_LENGTH = 10_000  # characters of text
MAX_NODES = 2_000  # conditions and elements of lists; a comparison counts as one with all that it compares
MAX_DEPTH = 100  # of conditions in one another, and of parentheses: what walks a tree may recurse
MAX_ITEMS = 500  # elements of one list
MAX_LAMBDAS = 20  # any() and all(): each is a query of its own


class Kind(Enum):
    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    GUID = "GUID"
    INSTANT = "instant"
    DATE = "date"


@dataclass(frozen=True)
class Collection:
    """Rows that belong to a row: asked with any() and all(), never compared. Without fields it is an array of values."""

    fields: Mapping[str, Kind]


Fields: TypeAlias = Mapping[str, Kind | Collection]


class Comparison(Enum):
    """There is no NE: `a ne b` is Not of `a eq b`."""

    EQ = "eq"
    GT = "gt"
    GE = "ge"
    LT = "lt"
    LE = "le"


class Case(Enum):
    LOWER = "tolower"
    UPPER = "toupper"


class Place(Enum):
    """Where one text is looked for in another."""

    ANYWHERE = "contains"
    START = "startswith"
    END = "endswith"


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: Kind
    of: str | None = None  # the collection that it belongs to; only inside of that collection's Exists


@dataclass(frozen=True, slots=True)
class Literal:
    value: Any  # None, str, int, Decimal, bool, UUID, datetime (UTC) or date
    kind: Kind | None  # None: null, which goes with every kind


@dataclass(frozen=True, slots=True)
class Folded:
    case: Case
    field: Field

    @property
    def kind(self) -> Kind:
        return Kind.TEXT


@dataclass(frozen=True, slots=True)
class Compare:
    """A boolean field that stands alone is compared with true."""

    op: Comparison
    left: "Field | Folded"
    right: "Value"


@dataclass(frozen=True, slots=True)
class In:
    operand: "Field | Folded"
    items: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class Match:
    place: Place
    whole: "Value"
    part: "Value"


@dataclass(frozen=True, slots=True)
class Exists:
    """Is there a row in the collection for which the body holds? Without a body: is there any?"""

    collection: str
    body: "Node | None"


@dataclass(frozen=True, slots=True)
class Not:
    operand: "Node"  # never a Not: two of them are none


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple["Node", ...]  # flat, so that a long chain is not a deep tree


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple["Node", ...]


Value: TypeAlias = Field | Folded | Literal
Node: TypeAlias = Literal | Compare | In | Match | Exists | Not | And | Or  # a Literal: true or false


def size(node: Node) -> int:
    return sum(1 + (len(part.items) if isinstance(part, In) else 0) for part in walk(node))


def spoken_of(node: Node) -> frozenset[str]:
    """The names of the fields in a condition."""
    found = set[Value]()
    for part in walk(node):
        match part:
            case Compare(_, left, right) | Match(_, left, right):
                found |= {left, right}
            case In(operand):
                found.add(operand)
    fields = [each.field if isinstance(each, Folded) else each for each in found]
    return frozenset(each.name for each in fields if isinstance(each, Field))


def walk(node: Node) -> Iterator[Node]:
    """Every condition, in the order of the text."""
    stack = [node]
    while stack:
        part = stack.pop()
        yield part
        match part:
            case And(parts) | Or(parts):
                stack += reversed(parts)
            case Not(operand):
                stack.append(operand)
            case Exists(_, body) if body is not None:
                stack.append(body)
