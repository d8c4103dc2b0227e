"""Text to tree over a table of fields, or where the text stops making sense."""

import operator
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeAlias, TypeGuard

from penstock.core.odata.lexer import READ, Token, TokenKind, literal, tokens
from penstock.core.odata.nodes import (MAX_DEPTH, MAX_ITEMS, MAX_LAMBDAS, MAX_LENGTH, MAX_NODES, And, Case, Collection, Compare, Comparison, Exists, Field, Fields, Folded, In, Kind, Literal, Match, Node, Not, Or, Place, Value, size)
from penstock.errors import Invalid

Part: TypeAlias = Value | Node


def parse(text: str, fields: Fields) -> Node:
    if len(text) > MAX_LENGTH:
        _refuse(f"there are more than {MAX_LENGTH:,} characters", MAX_LENGTH)
    parser = _Parser(text, fields)
    node = parser.condition(0)
    if parser.next.kind is not TokenKind.END:
        parser.fail("an operator, and, or, or the end")
    if size(node) > MAX_NODES:
        _refuse(f"there are more than {MAX_NODES:,} conditions and elements of lists", 0)
    return node


def unknown_field(name: str, known: Mapping[str, Any], option: str, **facts: Any) -> NoReturn:
    available = list(known)
    raise Invalid(
        "unknown_field",
        f"{option}: there is no field {name!r}; there are {', '.join(available)}",
        field=name,
        available=available,
        option=option,
        **facts,
    )


OPERATORS: dict[Comparison, Callable[[Any, Any], bool]] = {
    Comparison.EQ: operator.eq,
    Comparison.GT: operator.gt,
    Comparison.GE: operator.ge,
    Comparison.LT: operator.lt,
    Comparison.LE: operator.le,
}
FLIPPED = {
    Comparison.EQ: Comparison.EQ,
    Comparison.GT: Comparison.LT,
    Comparison.GE: Comparison.LE,
    Comparison.LT: Comparison.GT,
    Comparison.LE: Comparison.GE,
}
FOUND: dict[Place, Callable[[str, str], bool]] = {
    Place.ANYWHERE: operator.contains,
    Place.START: str.startswith,
    Place.END: str.endswith,
}
FOLDED: dict[Case, Callable[[str], str]] = {Case.LOWER: str.lower, Case.UPPER: str.upper}

POWER_OF_NOT = 5
POWERS = {"or": 1, "and": 2, "eq": 3, "ne": 3, "gt": 4, "ge": 4, "lt": 4, "le": 4, "in": 6}
CONSTANTS = {
    "true": Literal(True, Kind.BOOLEAN),
    "false": Literal(False, Kind.BOOLEAN),
    "null": Literal(None, None),
}
FUNCTIONS: dict[str, Case | Place] = {function.value: function for function in (*Place, *Case)}
NUMERIC = (Kind.INTEGER, Kind.NUMBER)


class _Parser:
    """A Pratt parser: an operator takes the operands on its sides that bind more tightly than itself."""

    def __init__(self, text: str, fields: Fields) -> None:
        self.tokens = tokens(text)
        self.fields = fields
        self.index = 0
        self.depth = -1
        self.lambdas = 0
        self.variable: tuple[str, str] | None = None  # inside of any() and all(): its name, and the collection's

    @property
    def next(self) -> Token:
        return self.tokens[self.index]

    def take(self) -> Token:
        self.index += 1
        return self.tokens[self.index - 1]

    def accept(self, key: str) -> bool:
        self.index += (found := self.next.key == key)
        return found

    def require(self, key: str, wanted: str = "") -> None:
        if not self.accept(key):
            self.fail(wanted or f"{key!r}")

    def condition(self, floor: int, advice: str = "") -> Node:
        at = self.next.at
        part = self.expression(floor)
        if not _is_condition(part) and self.next.kind is not TokenKind.END and self.next.key not in (*POWERS, ")"):
            self.fail("an operator")
        return _condition(part, at, advice)

    def expression(self, floor: int) -> Part:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            _refuse(f"it is more than {MAX_DEPTH} levels deep", self.next.at)
        at = self.next.at
        left = self.prefix()
        while (power := POWERS.get(self.next.key, 0)) > floor:
            left = self.infix(left, at, self.take(), power)
        self.depth -= 1
        return left

    def prefix(self) -> Part:
        token = self.next
        if (value := self.literal()) is not None:
            return value
        match token.kind, token.key:
            case _, "(":
                self.take()
                inner = self.expression(0)
                self.require(")", "an operator, and, or, or ')'")
                return inner
            case _, "not":
                self.take()
                return _not(self.condition(POWER_OF_NOT, "; put the comparison after not in parentheses"))
            case TokenKind.WORD, name:
                self.take()
                return self.call(token) if self.next.key == "(" else self.path(token, name)
        return self.fail("a field, a value or a condition")

    def infix(self, left: Part, left_at: int, token: Token, power: int) -> Node:
        match token.key:
            case "or":
                return Or((*_parts(_condition(left, left_at), Or), self.condition(power)))
            case "and":
                return And((*_parts(_condition(left, left_at), And), self.condition(power)))
            case "in":
                return _in(left, self.items(), token.at)
            case "ne":
                return _not(_compare(Comparison.EQ, left, self.expression(power), token.at))
        return _compare(Comparison(token.key), left, self.expression(power), token.at)

    def literal(self) -> Literal | None:
        token = self.next
        try:
            value = CONSTANTS.get(token.key) or literal(token)
        except ValueError as problem:
            _refuse(str(problem), token.at)
        if value is not None:
            self.take()
        return value

    def items(self) -> list[Literal]:
        self.require("(")
        items = list[Literal]()
        while not items or self.accept(","):
            at = self.next.at
            if len(items) == MAX_ITEMS:
                _refuse(f"a list has at most {MAX_ITEMS} elements", at)
            match self.prefix():
                case Literal() as item:
                    items.append(item)
                case _:
                    _refuse("expected a literal", at)
        self.require(")", "',' or ')'")
        return items

    def call(self, name: Token) -> Part:
        function = FUNCTIONS.get(name.text)
        if function is None:
            _refuse(f"there is no function {name.text!r}; there are {', '.join(FUNCTIONS)}", name.at)
        self.require("(")
        first = self.text_of(function)
        if isinstance(function, Case):
            self.require(")")
            return _folded(function, first)
        self.require(",")
        second = self.text_of(function)
        self.require(")")
        return _match(function, first, second)

    def text_of(self, function: Case | Place) -> Value:
        at = self.next.at
        operand = self.expression(0)
        if isinstance(operand, Field | Folded | Literal) and operand.kind in (Kind.TEXT, None):
            return operand
        return _refuse(f"{function.value} needs text, and {_said(operand)}", at)

    def path(self, token: Token, name: str) -> Part:
        if self.variable and name == self.variable[0] and self.accept("/"):
            return self.element(self.variable[1])
        match self.fields.get(name):
            case Kind() as kind:
                return Field(name, kind)
            case Collection(members) if not members:
                _refuse(f"{name} is an array, which no filter can ask about", token.at)
            case Collection():
                self.require("/", f"'/any(…)' or '/all(…)' after the collection {name}")
                return self.quantified(name)
        if self.variable and name == self.variable[0]:
            self.fail(f"'/' and a field of {name}")
        return unknown_field(name, self.fields, "$filter", position=token.at)

    def element(self, collection: str) -> Field:
        if self.next.kind is not TokenKind.WORD:
            self.fail(f"a field of {collection}")
        token, known = self.take(), self.members(collection)
        if token.text not in known:
            unknown_field(token.text, known, "$filter", position=token.at)
        return Field(token.text, known[token.text], collection)

    def members(self, collection: str) -> Mapping[str, Kind]:
        declared = self.fields[collection]
        assert isinstance(declared, Collection)
        return declared.fields

    def quantified(self, collection: str) -> Node:
        if self.next.key not in ("any", "all"):
            self.fail("any or all")
        quantifier = self.take()
        if self.variable:
            _refuse("any and all cannot be used inside of one another", quantifier.at)
        self.lambdas += 1
        if self.lambdas > MAX_LAMBDAS:
            _refuse(f"any and all are used more than {MAX_LAMBDAS} times", quantifier.at)
        self.require("(")
        if quantifier.text == "any" and self.accept(")"):
            return Exists(collection, None)
        if self.next.kind is not TokenKind.WORD:
            self.fail("a variable, as in any(x: x/name eq 'y')")
        self.variable = self.take().text, collection
        self.require(":")
        body = self.condition(0)
        self.require(")", "an operator, and, or, or ')'")
        self.variable = None
        return Exists(collection, body) if quantifier.text == "any" else _not(Exists(collection, _not(body)))

    def fail(self, wanted: str) -> NoReturn:
        token = self.next
        problem = f"expected {wanted}"
        if token.kind is TokenKind.BAD:
            problem = "a quote is not closed" if token.text == "'" else f"unexpected character {token.text!r}"
        _refuse(problem, token.at)


def _is_condition(part: Part) -> TypeGuard[Field | Node]:
    return not isinstance(part, Field | Folded | Literal) or part.kind is Kind.BOOLEAN


def _condition(part: Part, at: int, advice: str = "") -> Node:
    if not _is_condition(part):
        _refuse(f"expected a condition, and {_said(part)}{advice}", at)
    return Compare(Comparison.EQ, part, _constant(True)) if isinstance(part, Field) else part


def _not(node: Node) -> Node:
    return node.operand if isinstance(node, Not) else Not(node)


def _parts(node: Node, kind: type[And] | type[Or]) -> tuple[Node, ...]:
    return node.parts if isinstance(node, kind) else (node,)


def _compare(op: Comparison, left: Part, right: Part, at: int) -> Node:
    if isinstance(left, Literal) and not isinstance(right, Literal):
        op, left, right = FLIPPED[op], right, left
    if isinstance(left, Field | Folded | Literal) and isinstance(right, Field | Folded | Literal):
        left, right = _alike(left, right, at)
        if isinstance(left, Literal):
            return _constant(isinstance(right, Literal) and _holds(op, left.value, right.value))
        return Compare(op, left, right)
    if isinstance(right, Literal) and right.kind in (Kind.BOOLEAN, None):
        match _holds(op, False, right.value), _holds(op, True, right.value):
            case False, True:
                return _condition(left, at)
            case True, False:
                return _not(_condition(left, at))
            case always, _:
                return _constant(always)
    return _refuse("a condition can be compared with true, false and null only; use and, or and not", at)


def _in(operand: Part, items: list[Literal], at: int) -> Node:
    if not isinstance(operand, Field | Folded | Literal):
        _refuse("in needs a field or a value, and this is a condition; use parentheses", at)
    alike = [_alike(operand, item, at) for item in items]
    if isinstance(operand, Literal):
        return _constant(any(_holds(Comparison.EQ, left.value, right.value) for left, right in alike))  # type: ignore[union-attr]
    return In(operand, tuple(right for _, right in alike if isinstance(right, Literal)))


def _match(place: Place, whole: Value, part: Value) -> Node:
    if isinstance(whole, Literal) and isinstance(part, Literal):
        return _constant(None not in (whole.value, part.value) and FOUND[place](whole.value, part.value))
    return Match(place, whole, part)


def _folded(case: Case, operand: Value) -> Value:
    match operand:
        case Literal(str() as text):
            return Literal(FOLDED[case](text), Kind.TEXT)
        case Literal():
            return operand
        case Folded(_, field) | (Field() as field):
            return Folded(case, field)


def _holds(op: Comparison, left: Any, right: Any) -> bool:
    if left is None or right is None:
        return op is Comparison.EQ and left is right
    return OPERATORS[op](left, right)


def _constant(value: bool) -> Literal:
    return Literal(value, Kind.BOOLEAN)


def _alike(left: Value, right: Value, at: int) -> tuple[Value, Value]:
    """Both, of kinds that can be compared: a literal is read as the other side needs it."""
    if left.kind == right.kind or None in (left.kind, right.kind) or {left.kind, right.kind} == set(NUMERIC):
        return left, right
    try:
        if read := _read_as(left, right.kind):
            return read, right
        if read := _read_as(right, left.kind):
            return left, read
    except ValueError as problem:
        _refuse(f"{_said(left)} and {_said(right)}; {problem}", at)
    return _refuse(f"{_said(left)} and {_said(right)}; they cannot be compared{_advice(left, right)}", at)


def _read_as(value: Value, kind: Kind | None) -> Literal | None:
    match value, kind:
        case Literal(str() as text, Kind.TEXT), Kind.GUID | Kind.INSTANT | Kind.DATE:
            return Literal(READ[kind](text), kind)
        case Literal(day, Kind.DATE), Kind.INSTANT:
            return Literal(READ[kind](day.isoformat()), kind)
    return None


def _advice(left: Value, right: Value) -> str:
    value, other = (left, right) if isinstance(left, Literal) else (right, left)
    if isinstance(value, Literal) and other.kind is Kind.TEXT:
        return "; write text in quotes"
    if isinstance(value, Literal) and value.kind is Kind.TEXT:
        return "; write it without quotes"
    return ""


def _said(part: Part) -> str:
    match part:
        case Field(name, kind):
            return f"{name} is {kind.value}"
        case Folded(case, field):
            return f"{case.value}({field.name}) is text"
        case Literal(str() as text, Kind.TEXT):
            return f"'{text:.40}' is text"
        case Literal(None):
            return "null is no condition"
        case Literal(value, kind) if kind is not None:
            return f"{str(value).lower() if kind is Kind.BOOLEAN else str(value)[:40]} is {kind.value}"
    return "this is a condition"


def _refuse(problem: str, position: int) -> NoReturn:
    raise Invalid("bad_filter", f"$filter, position {position}: {problem}", position=position, option="$filter")
