"""Text to tree, or where the text stops making sense."""

import re
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from math import isinf
from typing import NamedTuple, NoReturn

from penstock.core.selector.nodes import (MAX_DEPTH, MAX_LENGTH, MAX_NODES, MAX_STEPS, And, Arithmetic, Between, Column, Compare, Comparison, In, IsNull, Like, Literal, Node, Not, Operation, Or, Wild, steps, walk)
from penstock.errors import Invalid


def parse(text: str) -> Node:
    if len(text) > MAX_LENGTH:
        _refuse(text[:100] + "…", f"More than {MAX_LENGTH:,} characters", MAX_LENGTH)
    parser = _Parser(text)
    node = parser.expression(0)
    parser.expect_after(node, Kind.END, "", "end of expression")
    depths = [depth for _, depth in walk(node)]
    if len(depths) > MAX_NODES:
        _refuse(text, f"More than {MAX_NODES:,} columns, values and operators", 0)
    if max(depths) > MAX_DEPTH:
        _refuse(text, f"More than {MAX_DEPTH} levels deep", 0)
    if steps(node) > MAX_STEPS:
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
