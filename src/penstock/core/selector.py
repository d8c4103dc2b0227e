"""Say which rows you mean: a small language of conditions over the columns of a dataset.

    parse(text)          the text as a tree of frozen nodes, or where it stops making sense
    bind(node, schema)   the tree with every type settled, or which two types do not go together
    columns(node)        the columns it reads
    bounds(node)         for each column, the interval outside which no row can be kept

The language, loosest first: OR, AND, NOT, then = != <> < <= > >= IN BETWEEN LIKE IS NULL (which do not chain),
then + -, then * /, then unary minus. Logic is three-valued: whatever touches NULL is unknown, and only TRUE keeps a
row. NaN equals nothing, is neither more nor less than anything, and differs from everything.

Numbers: integers, decimals and number literals are exact, and so are + - * of them (a result that may need more than
76 digits is refused by `bind`, so nothing overflows on the data). Where a float takes part, both sides are doubles;
`/` is always double, and x / 0 is NULL.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import reduce
from math import ceil, floor, isinf
from typing import Any, NamedTuple, NoReturn, TypeAlias

import pyarrow as pa

from penstock.errors import Invalid

MAX_LENGTH = 10_000  # characters of text
MAX_NODES = 2_000
MAX_DEPTH = 100  # of the tree and of parentheses: what walks a tree may recurse
MAX_STEPS = 10_000  # of evaluation, where a part that is used twice is evaluated twice
MAX_DIGITS = 76  # the widest decimal of Arrow


class Comparison(Enum):
    EQ = "="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="


class Operation(Enum):
    ADD = "+"
    SUBTRACT = "-"
    MULTIPLY = "*"
    DIVIDE = "/"


class Wild(Enum):
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
    op: Operation
    left: "Node"
    right: "Node"
    type: Any = None


@dataclass(frozen=True, slots=True)
class Cast:
    """Made by `bind` only: the operand, read as a type that both sides share."""

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
    pattern: tuple[str | Wild, ...]  # plain runs and wildcards, escapes resolved


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
    """Both ends belong to it; None is an open end. Empty where low > high. NULL and NaN lie in none."""

    low: Any
    high: Any


# -- text to tree -----------------------------------------------------------------------------------------------------


def parse(text: str) -> Node:
    if len(text) > MAX_LENGTH:
        _refuse(text[:100] + "…", f"More than {MAX_LENGTH:,} characters", MAX_LENGTH)
    parser = _Parser(text)
    node = parser.expression(0)
    parser.expect_after(node, Kind.END, "", "end of expression")
    depths = [depth for _, depth in _walk(node)]
    if len(depths) > MAX_NODES:
        _refuse(text, f"More than {MAX_NODES:,} columns, values and operators", 0)
    if max(depths) > MAX_DEPTH:
        _refuse(text, f"More than {MAX_DEPTH} levels deep", 0)
    if _steps(node) > MAX_STEPS:
        _refuse(text, f"More than {MAX_STEPS:,} steps: divisors in divisors, IN or BETWEEN of one another", 0)
    return node


class Kind(Enum):
    NUMBER = "number"
    WORD = "word"
    TEXT = "text"
    NAME = "name"
    SIGN = "sign"
    END = "end"
    BAD = "bad"


class Token(NamedTuple):
    kind: Kind
    text: str
    at: int

    @property
    def key(self) -> str:
        """The token as the grammar spells it; a quoted word is never a keyword."""
        return self.text.upper() if self.kind in (Kind.WORD, Kind.SIGN) and self.text.isascii() else ""


TOKEN = re.compile(
    r"""\s*(?:
      (?P<number> (?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+) (?:[eE][+-]?[0-9]+)? )
    | (?P<word>   [^\W\d]\w* )
    | (?P<text>   '(?:[^']|'')*+' | "(?:[^"]|"")*+" )
    | (?P<name>   `(?:[^`]|``)++` )
    | (?P<sign>   <=|>=|<>|!=|[=<>(),+*/]|-(?!-) )  # two dashes would be a comment in SQL; here they are refused
    | (?P<end>    \Z )
    | (?P<bad>    . )
    )""",
    re.VERBOSE | re.DOTALL,
)

COMPARISONS = {**{op.value: op for op in Comparison}, "<>": Comparison.NE}
OPERATIONS = {op.value: op for op in Operation}
CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None}
MOMENTS: dict[str, tuple[type[date], re.Pattern[str], str]] = {
    "DATE": (date, re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"), "2026-01-31"),
    "TIMESTAMP": (
        datetime,
        re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z?"),
        "2026-01-31 10:00:00",
    ),
}

POWER_OF_NOT, POWER_OF_COMPARISON, POWER_OF_MINUS = 3, 4, 7
POWERS = {
    "OR": 1,
    "AND": 2,
    **dict.fromkeys((*COMPARISONS, "NOT", "IN", "BETWEEN", "LIKE", "IS"), POWER_OF_COMPARISON),
    "+": 5,
    "-": 5,
    "*": 6,
    "/": 6,
}
RESERVED = {key for key in POWERS if key.isalpha()} | CONSTANTS.keys()


class _Parser:
    """A Pratt parser: an operator takes the operands on its sides that bind more tightly than itself."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = [_token(found) for found in TOKEN.finditer(text)]
        self.index = 0
        self.depth = -1

    @property
    def next(self) -> Token:
        return self.tokens[self.index]

    def take(self) -> Token:
        self.index += 1
        return self.tokens[self.index - 1]

    def accept(self, key: str) -> bool:
        self.index += (found := self.next.key == key)
        return found

    def require(self, key: str, wanted: str) -> None:
        if not self.accept(key):
            self.fail(wanted)

    def expression(self, floor: int) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            _refuse(self.text, f"More than {MAX_DEPTH} levels deep", self.next.at)
        left, ceiling = self.prefix(floor), POWER_OF_MINUS
        while floor < (power := POWERS.get(self.next.key, 0)) < ceiling:
            left = self.infix(left, self.take().key, power)
            if power == POWER_OF_COMPARISON:
                ceiling = power  # a < b < c has no meaning that all readers share
        self.depth -= 1
        return left

    def prefix(self, floor: int) -> Node:
        token = self.next
        match token.kind, token.key:
            case Kind.NUMBER, _:
                return Literal(self.number(self.take()))
            case Kind.TEXT, _:
                return Literal(self.quoted())
            case Kind.NAME, _:
                return Column(self.quoted())
            case _, "(":
                self.take()
                inner = self.expression(0)
                self.expect_after(inner, Kind.SIGN, ")", "')'")
                return inner
            case _, "-":
                self.take()
                match self.expression(POWER_OF_MINUS):
                    case Literal(int() | float() | Decimal() as value) if not isinstance(value, bool):
                        return Literal(_exact(Decimal(value).copy_negate()))
                    case operand:
                        return Arithmetic(Operation.SUBTRACT, Literal(0), operand)
            case _, "NOT" if floor <= POWER_OF_NOT:
                self.take()
                return Not(self.expression(POWER_OF_NOT))
            case _, "TRUE" | "FALSE" | "NULL":
                return Literal(CONSTANTS[self.take().key])
            case _, "DATE" | "TIMESTAMP" if self.tokens[self.index + 1].kind is Kind.TEXT:
                return Literal(self.moment(self.take().key))
            case Kind.WORD, key if key not in RESERVED:
                return Column(self.take().text)
        return self.fail("column or value")

    def infix(self, left: Node, key: str, power: int) -> Node:
        match key:
            case "OR":
                return Or((*_parts(left, Or), self.expression(power)))
            case "AND":
                return And((*_parts(left, And), self.expression(power)))
            case "+" | "-" | "*" | "/":
                return Arithmetic(OPERATIONS[key], left, self.expression(power))
            case "NOT":
                if self.next.key not in ("IN", "BETWEEN", "LIKE"):
                    self.fail("IN, BETWEEN or LIKE")
                return Not(self.infix(left, self.take().key, power))
            case "IS":
                negated = self.accept("NOT")
                self.require("NULL", "NULL" if negated else "NULL or NOT NULL")
                return Not(IsNull(left)) if negated else IsNull(left)
            case "IN":
                self.require("(", "'('")
                items = [self.constant()]
                while self.accept(","):
                    items.append(self.constant())
                self.require(")", "',' or ')'")
                return In(left, tuple(items))
            case "BETWEEN":
                low = self.expression(power)
                self.require("AND", "AND")
                return Between(left, low, self.expression(power))
            case "LIKE":
                if self.next.kind is not Kind.TEXT:
                    self.fail("pattern in quotes")
                return Like(left, self.pattern())
        return Compare(COMPARISONS[key], left, self.expression(power))

    def constant(self) -> Literal:
        at = self.index
        match self.expression(POWER_OF_COMPARISON):
            case Literal() as item:
                return item
        self.index = at
        return self.fail("literal")

    def number(self, token: Token) -> int | Decimal | float:
        _, _, exponent = token.text.lower().partition("e")
        if len(exponent) > 5 or isinf(value := _exact(Decimal(token.text))):
            _refuse(self.text, f"Number out of range at position {token.at}", token.at)
        return value

    def quoted(self) -> str:
        """The inside of a quoted token, with doubled quotes as one."""
        token = self.take()
        inside = token.text[1:-1].replace(token.text[0] * 2, token.text[0])
        if any("\ud800" <= char <= "\udfff" for char in inside):  # half a character: no UTF-8 can hold it
            _refuse(self.text, f"Invalid Unicode in quotes at position {token.at}", token.at)
        return inside

    def moment(self, key: str) -> date:
        token, value = self.next, self.quoted()
        kind, shape, example = MOMENTS[key]
        try:
            return kind.fromisoformat(value if shape.fullmatch(value) else "")
        except ValueError:  # also 2026-02-30, which has the shape
            _refuse(self.text, f"Expected {key} like '{example}' at position {token.at}", token.at)

    def pattern(self) -> tuple[str | Wild, ...]:
        token, parts = self.next, list[str | Wild]()
        chars = iter(self.quoted())
        for char in chars:
            if char in "%_":
                parts.append(Wild(char))
                continue
            plain = next(chars, "") if char == "\\" else char
            if not plain:
                _refuse(self.text, f"Pattern ends with its escape character at position {token.at}", token.at)
            if parts and isinstance(last := parts[-1], str):
                parts[-1] = last + plain
            else:
                parts.append(plain)
        return tuple(parts)

    def expect_after(self, node: Node, kind: Kind, key: str, wanted: str) -> None:
        if self.next.kind is kind and self.next.key == key:
            self.take()
            return
        while isinstance(node, And | Or | Not):  # what stands right before the unexpected token
            node = node.operand if isinstance(node, Not) else node.parts[-1]
        valued = isinstance(node, Column | Literal | Arithmetic)
        self.fail("comparison operator" if valued and self.next.kind is not Kind.END else f"AND, OR or {wanted}")

    def fail(self, wanted: str) -> NoReturn:
        token = self.next
        problem = f"Expected {wanted}"
        if token.kind is Kind.BAD:
            problem = "Unclosed quote" if token.text in "'\"`" else f"Unexpected character {token.text!r}"
        _refuse(self.text, f"{problem} at position {token.at}", token.at)


def _token(found: re.Match[str]) -> Token:
    kind = Kind(found.lastgroup)  # there is one: END and BAD match whatever the others leave
    return Token(kind, found[kind.value], found.start(kind.value))


def _exact(number: Decimal) -> int | Decimal | float:
    """The number as an integer or a decimal of Arrow if either can hold it, else the nearest double."""
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    if number.adjusted() < 19 and number == (whole := int(number)) and -(2**63) <= whole < 2**63:
        return whole
    return number if max(len(digits) + max(exponent, 0), -exponent) <= 38 else float(number)


def _parts(node: Node, kind: type[And] | type[Or]) -> tuple[Node, ...]:
    return node.parts if isinstance(node, kind) else (node,)


def _refuse(text: str, problem: str, position: int) -> NoReturn:
    raise Invalid(
        "bad_selector",
        f"the selector cannot be read: {problem}",
        expression=text,
        parse_error=problem,
        position=position,
    )


# -- what a tree holds ------------------------------------------------------------------------------------------------


def columns(node: Node) -> frozenset[str]:
    return frozenset(part.name for part, _ in _walk(node) if isinstance(part, Column))


def _walk(node: Node) -> Iterator[tuple[Node, int]]:
    """Every node with its depth, in the order of the text; without recursion, because it also judges the depth."""
    stack = [(node, 0)]
    while stack:
        part, depth = stack.pop()
        yield part, depth
        stack += [(child, depth + 1) for child in reversed(_children(part))]


def _children(node: Node) -> tuple[Node, ...]:
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


def _steps(node: Node) -> int:
    """What it takes to evaluate: engines test a divisor for zero, and the left of IN and BETWEEN, in a copy of it."""
    steps = [_steps(child) for child in _children(node)]
    match node:
        case Between() | In():
            steps.append(steps[0])
        case Arithmetic(Operation.DIVIDE):
            steps.append(steps[-1])
    return 1 + sum(steps)


# -- types ------------------------------------------------------------------------------------------------------------

INTEGERS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}  # with the digits of each, narrowest first
TO_WRITE = {
    pa.bool_(): "write TRUE or FALSE",
    pa.string(): "write text in quotes",
    pa.date32(): "write DATE '2026-01-31'",
    pa.timestamp("us"): "write TIMESTAMP '2026-01-31 10:00:00'",
    pa.timestamp("us", "UTC"): "write TIMESTAMP '2026-01-31 10:00:00Z'",
}


def bind(node: Node, schema: pa.Schema) -> Node:
    """The same condition with a type on every value: where two meet, they have one type, and literals already took it.

    A bound node may be bound again to the same schema; nothing changes.
    """
    types = dict(zip(schema.names, schema.types, strict=True))
    for part, _ in _walk(node):
        if isinstance(part, Column) and part.name not in types:
            raise Invalid(
                "no_such_column",
                f"there is no column {part.name!r}; the dataset has {', '.join(types)}",
                column=part.name,
                columns=list(types),
            )
    return _condition(_typed(node, types), "a selector")


def _typed(node: Node, types: dict[str, Any]) -> Node:
    match node:
        case Column(name):
            return Column(name, types[name])
        case Literal(value, type):
            return Literal(value, type or _literal_type(value))
        case Cast(operand, type):
            return Cast(_typed(operand, types), type)
        case Arithmetic(op, left, right):
            return _arithmetic(op, _typed(left, types), _typed(right, types))
        case Compare(op, left, right):
            return Compare(op, *_alike(_typed(left, types), _typed(right, types)))
        case Between(operand, low, high):
            return Between(*_alike(*(_typed(part, types) for part in (operand, low, high))))
        case In(operand, items):
            value, *rest = _alike(*(_typed(part, types) for part in (operand, *items)))
            return In(value, tuple(item for item in rest if isinstance(item, Literal)))
        case Like(operand, pattern):
            value = _typed(operand, types)
            if _type(value) not in (pa.string(), pa.null()):
                _mistyped(f"LIKE needs text, and {_said(value)}", value)
            return Like(_as(value, pa.string()), pattern)
        case IsNull(operand):
            return IsNull(_typed(operand, types))
        case Not(operand):
            return Not(_condition(_typed(operand, types), "NOT"))
        case And(parts):
            return And(tuple(_condition(_typed(part, types), "AND") for part in parts))
        case Or(parts):
            return Or(tuple(_condition(_typed(part, types), "OR") for part in parts))


def _type(node: Node) -> Any:
    return node.type if isinstance(node, Column | Literal | Arithmetic | Cast) else pa.bool_()


def _literal_type(value: Any) -> Any:
    match value:
        case None:
            return pa.null()
        case bool():
            return pa.bool_()
        case int():  # the narrowest, so that the other side need not widen
            return next(type for type in INTEGERS if (value ^ (value >> 63)).bit_length() < type.bit_width)
        case Decimal():
            _, digits, exponent = value.as_tuple()
            assert isinstance(exponent, int)
            return _decimal(max(len(digits) + exponent, 0), max(-exponent, 0))
        case float():
            return pa.float64()
        case str():
            return pa.string()
        case datetime():
            return pa.timestamp("us", "UTC" if value.tzinfo else None)
        case date():
            return pa.date32()
    raise TypeError(f"a selector has no literals of {value.__class__.__name__}")


def _condition(node: Node, reader: str) -> Node:
    if _type(node) not in (pa.bool_(), pa.null()):
        _mistyped(f"{reader} needs a condition, and {_said(node)}", node)
    return _as(node, pa.bool_())


def _alike(*nodes: Node) -> tuple[Node, ...]:
    """The nodes, all read as the one type in which they can be compared."""
    common, first = pa.null(), nodes[0]
    for node in nodes:
        merged = _common(common, type := _type(node))
        if pa.types.is_nested(type):
            _mistyped(f"only IS NULL and IS NOT NULL can be asked of it: {_said(node)}", node)
        if merged is None:
            _mistyped(f"{_said(first)} and {_said(node)}; they cannot be compared{_advice(first, node)}", first, node)
        if common == pa.null():
            first = node
        common = merged
    return tuple(_as(node, pa.bool_() if common == pa.null() else common) for node in nodes)


def _common(left: Any, right: Any) -> Any:
    """The type that holds the values of both, or None."""
    if left == right or right == pa.null():
        return left
    if left == pa.null():
        return right
    if left in INTEGERS and right in INTEGERS:
        return max(left, right, key=INTEGERS.__getitem__)
    if not (_is_number(left) and _is_number(right)):
        return None
    if pa.types.is_floating(left) or pa.types.is_floating(right):
        return pa.float64()
    (whole, scale), (other_whole, other_scale) = _digits(left), _digits(right)
    return _decimal(max(whole, other_whole), max(scale, other_scale))


def _arithmetic(op: Operation, left: Node, right: Node) -> Node:
    left, right = (_as(node, pa.int8()) if _type(node) == pa.null() else node for node in (left, right))
    for node in (left, right):
        if not _is_number(_type(node)):
            _mistyped(f"{op.value} needs numbers, and {_said(node)}", node)
    if op is Operation.DIVIDE or any(pa.types.is_floating(_type(node)) for node in (left, right)):
        return Arithmetic(op, _as(left, pa.float64()), _as(right, pa.float64()), pa.float64())
    (whole, scale), (other_whole, other_scale) = _digits(_type(left)), _digits(_type(right))
    if op is Operation.MULTIPLY:
        type = _decimal(whole + other_whole + 1, scale + other_scale)
    else:
        type = _decimal(max(whole, other_whole) + 1, max(scale, other_scale))
    kind = type.__class__  # the operands keep their digits and take the width of the result
    left, right = _as(left, _decimal(whole, scale, kind)), _as(right, _decimal(other_whole, other_scale, kind))
    return Arithmetic(op, left, right, type)


def _as(node: Node, type: Any) -> Node:
    if _type(node) == type:
        return node
    if not isinstance(node, Literal):
        return Cast(node, type)
    if node.value is None or type in INTEGERS:
        return Literal(node.value, type)
    return Literal(float(node.value) if pa.types.is_floating(type) else Decimal(node.value), type)


def _is_number(type: Any) -> bool:
    return type in INTEGERS or pa.types.is_decimal(type) or pa.types.is_floating(type)


def _digits(type: Any) -> tuple[int, int]:
    return (INTEGERS[type], 0) if type in INTEGERS else (type.precision - type.scale, type.scale)


def _decimal(whole: int, scale: int, kind: Any = pa.Decimal128Type) -> Any:
    digits = max(whole + scale, 1)
    if digits > MAX_DIGITS:
        _mistyped(f"the result may need {digits} digits, and at most {MAX_DIGITS} are exact; compare smaller numbers")
    return pa.decimal256(digits, scale) if digits > 38 or kind is pa.Decimal256Type else pa.decimal128(digits, scale)


def _said(node: Node) -> str:
    match node:
        case Column(name, type):
            return f"{name} is {type}"
        case Literal(str() as text):
            return f"'{text:.40}' is string"
        case Literal(value, type):
            return f"{value} is {pa.int64() if type in INTEGERS else type}"
    return f"the {'result' if isinstance(node, Arithmetic | Cast) else 'condition'} is {_type(node)}"


def _advice(*nodes: Node) -> str:
    """What to write instead of a literal, going by what is not a literal."""
    other = next((_type(node) for node in nodes if not isinstance(node, Literal)), None)
    if not any(isinstance(node, Literal) for node in nodes) or other is None:
        return ""
    wanted = "write a number without quotes" if _is_number(other) else TO_WRITE.get(other)
    return f"; {wanted}" if wanted else ""


def _mistyped(problem: str, *nodes: Node) -> NoReturn:
    raise Invalid("bad_selector", problem, parse_error=problem, types=[str(_type(node)) for node in nodes])


# -- what must hold of a column ---------------------------------------------------------------------------------------

FLIPPED = {
    Comparison.LT: Comparison.GT,
    Comparison.LE: Comparison.GE,
    Comparison.GT: Comparison.LT,
    Comparison.GE: Comparison.LE,
}


def bounds(node: Node) -> dict[str, Interval]:
    """For each column that a bound condition confines: an interval that holds its value in every row that is kept.

    It may hold more. NOT confines nothing: NaN passes `NOT x < 1` and lies in no interval.
    """
    match node:
        case And(parts):
            return reduce(_both, map(bounds, parts))
        case Or(parts):
            return reduce(_either, map(bounds, parts))
        case Column():
            return _within(node, True, True)
        case Compare(op, Literal() as value, operand) if not isinstance(operand, Literal):
            return bounds(Compare(FLIPPED.get(op, op), operand, value))
        case Compare(Comparison.EQ, operand, Literal(value)):
            return _within(operand, value, value)
        case Compare(Comparison.LT | Comparison.LE, operand, Literal(value)):
            return _within(operand, None, value)
        case Compare(Comparison.GT | Comparison.GE, operand, Literal(value)):
            return _within(operand, value, None)
        case Between(operand, low, high):
            return _both(bounds(Compare(Comparison.GE, operand, low)), bounds(Compare(Comparison.LE, operand, high)))
        case In(operand, items) if values := [item.value for item in items if item.value is not None]:
            return _within(operand, min(values), max(values))
        case Like(operand, (str() as prefix,)):
            return _within(operand, prefix, prefix)
        case Like(operand, (str() as prefix, *_)):
            last = prefix[-1]  # the next prefix of this length lies above all that begin so
            after = prefix[:-1] + chr(ord(last) + 1) if last < "\ud7ff" else None
            return _within(operand, prefix, after)
    return {}


def _within(operand: Node, low: Any, high: Any) -> dict[str, Interval]:
    match operand:
        case Cast(Column(_, type) as column, wider) if pa.types.is_floating(type) or not pa.types.is_floating(wider):
            operand = column  # such casts keep the value; an integer read as a double may move past the end
    if not isinstance(operand, Column):
        return {}
    if operand.type in INTEGERS:  # ends that are integers of 64 bits too, whatever the literals were
        low, high = _clamped(low, ceil), _clamped(high, floor)
    return {operand.name: Interval(low, high)}


def _clamped(end: Any, whole: Callable[[Any], int]) -> int | None:
    return None if end is None else min(max(whole(end), -(2**63)), 2**63 - 1)


def _both(left: dict[str, Interval], right: dict[str, Interval]) -> dict[str, Interval]:
    shared = {}
    for name in left.keys() & right.keys():
        a, b = left[name], right[name]
        low = max((end for end in (a.low, b.low) if end is not None), default=None)
        high = min((end for end in (a.high, b.high) if end is not None), default=None)
        shared[name] = Interval(low, high)
    return left | right | shared


def _either(left: dict[str, Interval], right: dict[str, Interval]) -> dict[str, Interval]:
    shared = {}
    for name in left.keys() & right.keys():
        a, b = left[name], right[name]
        low = None if a.low is None or b.low is None else min(a.low, b.low)
        high = None if a.high is None or b.high is None else max(a.high, b.high)
        shared[name] = Interval(low, high)
    return shared
