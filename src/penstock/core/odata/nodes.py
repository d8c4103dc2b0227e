"""Syntax tree of an OData filter, as frozen nodes with resolved types."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

MAX_LENGTH = 10_000  # characters of text
MAX_NODES = 2_000  # conditions and list elements; a comparison counts as one with its operands
MAX_DEPTH = 100  # of nested conditions and parentheses, so that functions over the tree may recurse
MAX_ITEMS = 500  # elements of one list
MAX_LAMBDAS = 20  # of any() and all(), each of which is a subquery


class FieldKind(Enum):
    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    GUID = "GUID"
    INSTANT = "instant"
    DATE = "date"


@dataclass(frozen=True)
class Collection:
    """Rows that belong to a row, used with any() and all(). Without fields it is an array of values."""

    fields: Mapping[str, FieldKind]


Fields: TypeAlias = Mapping[str, FieldKind | Collection]


class ODataComparison(Enum):
    """There is no NE: `a ne b` is Not of `a eq b`."""

    EQ = "eq"
    GT = "gt"
    GE = "ge"
    LT = "lt"
    LE = "le"


class LetterCase(Enum):
    LOWER = "tolower"
    UPPER = "toupper"


class MatchKind(Enum):
    """Position at which one text is searched in another."""

    ANYWHERE = "contains"
    START = "startswith"
    END = "endswith"


@dataclass(frozen=True, slots=True)
class ODataField:
    name: str
    kind: FieldKind
    of: str | None = None  # collection that it belongs to; only inside of that collection's Exists


@dataclass(frozen=True, slots=True)
class ODataLiteral:
    value: Any  # None, str, int, Decimal, bool, UUID, datetime (UTC) or date
    kind: FieldKind | None  # None: null, which matches every type


@dataclass(frozen=True, slots=True)
class CaseFold:
    """Text in lower or upper case. A literal is folded like the column that it is compared with."""

    case: LetterCase
    operand: ODataField | ODataLiteral

    @property
    def kind(self) -> FieldKind:
        return FieldKind.TEXT


@dataclass(frozen=True, slots=True)
class ODataCompare:
    """A comparison, which is never null: null equals only null, and has no order."""

    op: ODataComparison
    left: "ODataField | CaseFold"
    right: "Value"


@dataclass(frozen=True, slots=True)
class ODataIn:
    operand: "ODataField | CaseFold"
    items: "tuple[ODataLiteral | CaseFold, ...]"


@dataclass(frozen=True, slots=True)
class TextMatch:
    match_kind: MatchKind
    whole: "Value"
    part: "Value"


@dataclass(frozen=True, slots=True)
class Exists:
    """True if the collection contains a row that satisfies the body; without a body, if it is not empty. Never null."""

    collection: str
    body: "Node | None"


@dataclass(frozen=True, slots=True)
class TruthTest:
    """True if the condition has the value, and false otherwise; never null."""

    operand: "Node"  # can be null; never a Not or a field
    value: bool | None


@dataclass(frozen=True, slots=True)
class ODataNot:
    operand: "Node"  # never a Not: double negation is removed


@dataclass(frozen=True, slots=True)
class ODataAnd:
    parts: tuple["Node", ...]  # flat, so that a long chain is not a deep tree


@dataclass(frozen=True, slots=True)
class ODataOr:
    parts: tuple["Node", ...]


Value: TypeAlias = ODataField | CaseFold | ODataLiteral
# A condition is true, false or null. A literal is true, false or null, and a field is boolean.
Node: TypeAlias = (
    ODataLiteral | ODataField | ODataCompare | ODataIn | TextMatch | Exists | TruthTest | ODataNot | ODataAnd | ODataOr
)


class Truth(Enum):
    """The test that SQL evaluates for a condition. NULL counts as false.

    `not` turns one test into another, so that it is pushed down to the single comparisons.
    """

    IS_TRUE = "is true"
    IS_FALSE = "is false"
    IS_NOT_TRUE = "is false or null"
    IS_NOT_FALSE = "is true or null"

    @property
    def of_operand(self) -> "Truth":
        """Return the test of the operand of `not`."""
        return _NEGATED_TRUTH[self]

    @property
    def swaps_operators(self) -> bool:
        """Return whether `and` becomes `or`, and the reverse."""
        return self in (Truth.IS_FALSE, Truth.IS_NOT_TRUE)

    def holds(self, value: bool | None) -> bool:
        """Return the result of the test for a known value."""
        match self:
            case Truth.IS_TRUE:
                return value is True
            case Truth.IS_FALSE:
                return value is False
            case Truth.IS_NOT_TRUE:
                return value is not True
        return value is not False


_NEGATED_TRUTH = {
    Truth.IS_TRUE: Truth.IS_FALSE,
    Truth.IS_FALSE: Truth.IS_TRUE,
    Truth.IS_NOT_TRUE: Truth.IS_NOT_FALSE,
    Truth.IS_NOT_FALSE: Truth.IS_NOT_TRUE,
}


def is_never_null(node: Node) -> bool:
    """Return whether a condition is true or false for every row."""
    match node:
        case ODataLiteral(value):
            return value is not None
        case ODataField() | TextMatch():
            return False
        case ODataNot(operand):
            return is_never_null(operand)
        case ODataAnd(parts) | ODataOr(parts):
            return all(map(is_never_null, parts))
    return True


def operand_tests(test: TruthTest, truth: Truth) -> tuple[Truth, ...]:
    """Return the tests of the operand that together are equivalent to a test of `test`.

    A comparison with null has two: joined by `and` if `truth` is affirmative, and by `or` if it is negated.
    """
    is_affirmed = not truth.swaps_operators
    match test.value:
        case True:
            return (Truth.IS_TRUE if is_affirmed else Truth.IS_NOT_TRUE,)
        case False:
            return (Truth.IS_FALSE if is_affirmed else Truth.IS_NOT_FALSE,)
    return (Truth.IS_NOT_TRUE, Truth.IS_NOT_FALSE) if is_affirmed else (Truth.IS_TRUE, Truth.IS_FALSE)


def size(node: Node) -> int:
    """Return the number of conditions and list elements in SQL, where the operand of `eq null` occurs twice."""
    return _weigh(node, lambda part: 1 + (len(part.items) if isinstance(part, ODataIn) else 0))


def count_lambdas(node: Node) -> int:
    """Return the number of subqueries in SQL."""
    return _weigh(node, lambda part: isinstance(part, Exists))


def _weigh(node: Node, weight: Callable[[Node], int]) -> int:
    inner: Sequence[Node] = ()
    match node:
        case ODataAnd(parts) | ODataOr(parts):
            inner = parts
        case ODataNot(operand) | TruthTest(operand):
            inner = [operand]
        case Exists(_, body) if body is not None:
            inner = [body]
    total = weight(node) + sum(_weigh(part, weight) for part in inner)
    return 2 * total if isinstance(node, TruthTest) and node.value is None else total


def field_names(node: Node) -> frozenset[str]:
    """Return the names of the fields in a condition."""
    operands = set[Value]()
    for part in walk(node):
        match part:
            case ODataCompare(_, left, right) | TextMatch(_, left, right):
                operands |= {left, right}
            case ODataIn(operand):
                operands.add(operand)
            case ODataField():
                operands.add(part)
    fields = [field.operand if isinstance(field, CaseFold) else field for field in operands]
    return frozenset(field.name for field in fields if isinstance(field, ODataField))


def walk(node: Node) -> Iterator[Node]:
    """Yield every condition, in the order of the text."""
    stack = [node]
    while stack:
        part = stack.pop()
        yield part
        match part:
            case ODataAnd(parts) | ODataOr(parts):
                stack += reversed(parts)
            case ODataNot(operand) | TruthTest(operand):
                stack.append(operand)
            case Exists(_, body) if body is not None:
                stack.append(body)
