"""Parse the filter expression language."""

import re
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from math import isinf
from typing import NamedTuple, NoReturn

from penstock.core.selector.nodes import (
    MAX_DEPTH,
    MAX_LENGTH,
    MAX_NODES,
    MAX_STEPS,
    And,
    Arithmetic,
    ArithmeticOperator,
    Between,
    Column,
    Compare,
    Comparison,
    In,
    IsNull,
    Like,
    Literal,
    Node,
    Not,
    Or,
    Wildcard,
    steps,
    walk,
)
from penstock.errors import Invalid


def parse(text: str) -> Node:
    """Parse a filter expression.

    Raises:
        Invalid: the text is not an expression, or exceeds a limit
    """
    if len(text) > MAX_LENGTH:
        _fail(text[:100] + "…", f"More than {MAX_LENGTH:,} characters", MAX_LENGTH)
    parser = _SelectorParser(text)
    node = parser.parse_expression(0)
    parser.expect_after(node, SelectorTokenKind.END, "", "end of expression")
    depths = [depth for _, depth in walk(node)]
    if len(depths) > MAX_NODES:
        _fail(text, f"More than {MAX_NODES:,} columns, values and operators", 0)
    if max(depths) > MAX_DEPTH:
        _fail(text, f"More than {MAX_DEPTH} levels deep", 0)
    if steps(node) > MAX_STEPS:
        _fail(text, f"More than {MAX_STEPS:,} steps: divisors in divisors, IN or BETWEEN of one another", 0)
    return node


class SelectorTokenKind(Enum):
    NUMBER = "number"
    WORD = "word"
    TEXT = "text"
    NAME = "name"
    SIGN = "sign"
    END = "end"
    BAD = "bad"


class SelectorToken(NamedTuple):
    kind: SelectorTokenKind
    text: str
    at: int

    @property
    def key(self) -> str:
        """Return the token as the grammar spells it; a quoted word is never a keyword."""
        return (
            self.text.upper()
            if self.kind in (SelectorTokenKind.WORD, SelectorTokenKind.SIGN) and self.text.isascii()
            else ""
        )


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
ARITHMETIC_OPERATORS = {op.value: op for op in ArithmeticOperator}
CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None}
TEMPORAL_LITERALS: dict[str, tuple[type[date], re.Pattern[str], str]] = {
    "DATE": (date, re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"), "2026-01-31"),
    "TIMESTAMP": (
        datetime,
        re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z?"),
        "2026-01-31 10:00:00",
    ),
}

NOT_PRECEDENCE, COMPARISON_PRECEDENCE, MINUS_PRECEDENCE = 3, 4, 7
PRECEDENCE = {
    "OR": 1,
    "AND": 2,
    **dict.fromkeys((*COMPARISONS, "NOT", "IN", "BETWEEN", "LIKE", "IS"), COMPARISON_PRECEDENCE),
    "+": 5,
    "-": 5,
    "*": 6,
    "/": 6,
}
RESERVED = {key for key in PRECEDENCE if key.isalpha()} | CONSTANTS.keys()


class _SelectorParser:
    """A Pratt parser: an operator takes the operands on its sides that bind more tightly than itself."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = [_to_token(matched) for matched in TOKEN.finditer(text)]
        self.index = 0
        self.depth = -1

    @property
    def next(self) -> SelectorToken:
        return self.tokens[self.index]

    def take(self) -> SelectorToken:
        self.index += 1
        return self.tokens[self.index - 1]

    def accept(self, key: str) -> bool:
        self.index += (matched := self.next.key == key)
        return matched

    def require(self, key: str, expected: str) -> None:
        if not self.accept(key):
            self.fail(expected)

    def parse_expression(self, floor: int) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            _fail(self.text, f"More than {MAX_DEPTH} levels deep", self.next.at)
        left, ceiling = self.parse_prefix(floor), MINUS_PRECEDENCE
        while floor < (precedence := PRECEDENCE.get(self.next.key, 0)) < ceiling:
            left = self.parse_infix(left, self.take().key, precedence)
            if precedence == COMPARISON_PRECEDENCE:
                ceiling = precedence  # a < b < c has no common meaning among SQL dialects
        self.depth -= 1
        return left

    def parse_prefix(self, floor: int) -> Node:
        token = self.next
        match token.kind, token.key:
            case SelectorTokenKind.NUMBER, _:
                return Literal(self.parse_number(self.take()))
            case SelectorTokenKind.TEXT, _:
                return Literal(self.parse_quoted())
            case SelectorTokenKind.NAME, _:
                return Column(self.parse_quoted())
            case _, "(":
                self.take()
                inner = self.parse_expression(0)
                self.expect_after(inner, SelectorTokenKind.SIGN, ")", "')'")
                return inner
            case _, "-":
                self.take()
                match self.parse_expression(MINUS_PRECEDENCE):
                    case Literal(int() | float() | Decimal() as value) if not isinstance(value, bool):
                        return Literal(_to_exact(Decimal(value).copy_negate()))
                    case operand:
                        return Arithmetic(ArithmeticOperator.SUBTRACT, Literal(0), operand)
            case _, "NOT" if floor <= NOT_PRECEDENCE:
                self.take()
                return Not(self.parse_expression(NOT_PRECEDENCE))
            case _, "TRUE" | "FALSE" | "NULL":
                return Literal(CONSTANTS[self.take().key])
            case _, "DATE" | "TIMESTAMP" if self.tokens[self.index + 1].kind is SelectorTokenKind.TEXT:
                return Literal(self.parse_temporal(self.take().key))
            case SelectorTokenKind.WORD, key if key not in RESERVED:
                return Column(self.take().text)
        return self.fail("column or value")

    def parse_infix(self, left: Node, key: str, precedence: int) -> Node:
        match key:
            case "OR":
                return Or((*_flatten(left, Or), self.parse_expression(precedence)))
            case "AND":
                return And((*_flatten(left, And), self.parse_expression(precedence)))
            case "+" | "-" | "*" | "/":
                return Arithmetic(ARITHMETIC_OPERATORS[key], left, self.parse_expression(precedence))
            case "NOT":
                if self.next.key not in ("IN", "BETWEEN", "LIKE"):
                    self.fail("IN, BETWEEN or LIKE")
                return Not(self.parse_infix(left, self.take().key, precedence))
            case "IS":
                negated = self.accept("NOT")
                self.require("NULL", "NULL" if negated else "NULL or NOT NULL")
                return Not(IsNull(left)) if negated else IsNull(left)
            case "IN":
                self.require("(", "'('")
                items = [self.parse_constant()]
                while self.accept(","):
                    items.append(self.parse_constant())
                self.require(")", "',' or ')'")
                return In(left, tuple(items))
            case "BETWEEN":
                low = self.parse_expression(precedence)
                self.require("AND", "AND")
                return Between(left, low, self.parse_expression(precedence))
            case "LIKE":
                if self.next.kind is not SelectorTokenKind.TEXT:
                    self.fail("pattern in quotes")
                return Like(left, self.parse_pattern())
        return Compare(COMPARISONS[key], left, self.parse_expression(precedence))

    def parse_constant(self) -> Literal:
        at = self.index
        match self.parse_expression(COMPARISON_PRECEDENCE):
            case Literal() as item:
                return item
        self.index = at
        return self.fail("literal")

    def parse_number(self, token: SelectorToken) -> int | Decimal | float:
        _, _, exponent = token.text.lower().partition("e")
        if len(exponent) > 5 or isinf(value := _to_exact(Decimal(token.text))):
            _fail(self.text, f"Number out of range at position {token.at}", token.at)
        return value

    def parse_quoted(self) -> str:
        """Return the text of a quoted token, with doubled quotes reduced to one."""
        token = self.take()
        inside = token.text[1:-1].replace(token.text[0] * 2, token.text[0])
        if any("\ud800" <= char <= "\udfff" for char in inside):  # an unpaired surrogate, which UTF-8 cannot encode
            _fail(self.text, f"Invalid Unicode in quotes at position {token.at}", token.at)
        return inside

    def parse_temporal(self, key: str) -> date:
        token, value = self.next, self.parse_quoted()
        value_type, pattern, example = TEMPORAL_LITERALS[key]
        try:
            return value_type.fromisoformat(value if pattern.fullmatch(value) else "")
        except ValueError:  # also for 2026-02-30, which matches the pattern
            _fail(self.text, f"Expected {key} like '{example}' at position {token.at}", token.at)

    def parse_pattern(self) -> tuple[str | Wildcard, ...]:
        token, parts = self.next, list[str | Wildcard]()
        chars = iter(self.parse_quoted())
        for char in chars:
            if char in "%_":
                parts.append(Wildcard(char))
                continue
            plain = next(chars, "") if char == "\\" else char
            if not plain:
                _fail(self.text, f"Pattern ends with its escape character at position {token.at}", token.at)
            if parts and isinstance(last := parts[-1], str):
                parts[-1] = last + plain
            else:
                parts.append(plain)
        return tuple(parts)

    def expect_after(self, node: Node, kind: SelectorTokenKind, key: str, expected: str) -> None:
        if self.next.kind is kind and self.next.key == key:
            self.take()
            return
        while isinstance(node, And | Or | Not):  # the node right before the unexpected token
            node = node.operand if isinstance(node, Not) else node.parts[-1]
        valued = isinstance(node, Column | Literal | Arithmetic)
        self.fail(
            "comparison operator"
            if valued and self.next.kind is not SelectorTokenKind.END
            else f"AND, OR or {expected}"
        )

    def fail(self, expected: str) -> NoReturn:
        token = self.next
        problem = f"Expected {expected}"
        if token.kind is SelectorTokenKind.BAD:
            problem = "Unclosed quote" if token.text in "'\"`" else f"Unexpected character {token.text!r}"
        _fail(self.text, f"{problem} at position {token.at}", token.at)


def _to_token(match: re.Match[str]) -> SelectorToken:
    kind = SelectorTokenKind(match.lastgroup)  # never None: END and BAD match what the others leave
    return SelectorToken(kind, match[kind.value], match.start(kind.value))


def _to_exact(number: Decimal) -> int | Decimal | float:
    """Return the number as an integer or an Arrow decimal if either can hold it, else as the nearest double."""
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    if number.adjusted() < 19 and number == (whole := int(number)) and -(2**63) <= whole < 2**63:
        return whole
    return number if max(len(digits) + max(exponent, 0), -exponent) <= 38 else float(number)


def _flatten(node: Node, node_class: type[And] | type[Or]) -> tuple[Node, ...]:
    return node.parts if isinstance(node, node_class) else (node,)


def _fail(text: str, problem: str, position: int) -> NoReturn:
    raise Invalid(
        "bad_selector",
        {"problem": problem},
        expression=text,
        parse_error=problem,
        position=position,
    )
