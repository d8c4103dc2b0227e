"""Parse an OData filter over a table of fields."""

import operator
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeAlias, TypeGuard

from penstock.core.odata.lexer import TEXT_PARSERS, ODataToken, TokenKind, parse_literal, tokenize
from penstock.core.odata.nodes import (
    MAX_DEPTH,
    MAX_ITEMS,
    MAX_LAMBDAS,
    MAX_LENGTH,
    MAX_NODES,
    CaseFold,
    Collection,
    Exists,
    FieldKind,
    Fields,
    LetterCase,
    MatchKind,
    Node,
    ODataAnd,
    ODataCompare,
    ODataComparison,
    ODataField,
    ODataIn,
    ODataLiteral,
    ODataNot,
    ODataOr,
    TextMatch,
    TruthTest,
    Value,
    count_lambdas,
    is_never_null,
    size,
)
from penstock.errors import Invalid

Part: TypeAlias = Value | Node


def parse(text: str, fields: Fields) -> Node:
    """Parse a `$filter`.

    Raises:
        Invalid: the text is not a filter, names an unknown field, or exceeds a limit
    """
    if len(text) > MAX_LENGTH:
        _fail(f"more than {MAX_LENGTH:,} characters", MAX_LENGTH)
    parser = _ODataParser(text, fields)
    node = parser.parse_condition(0)
    if parser.next.kind is not TokenKind.END:
        parser.fail("an operator, and, or, or the end")
    if size(node) > MAX_NODES:
        _fail(f"more than {MAX_NODES:,} conditions and list elements; those compared with null count twice", 0)
    if count_lambdas(node) > MAX_LAMBDAS:
        _fail(f"any and all are used more than {MAX_LAMBDAS} times; those compared with null count twice", 0)
    return node


def fail_unknown_field(name: str, valid_fields: Mapping[str, Any], option: str, **context: Any) -> NoReturn:
    available = list(valid_fields)
    raise Invalid(
        "unknown_field",
        field=name,
        available=available,
        option=option,
        **context,
    )


OPERATORS: dict[ODataComparison, Callable[[Any, Any], bool]] = {
    ODataComparison.EQ: operator.eq,
    ODataComparison.GT: operator.gt,
    ODataComparison.GE: operator.ge,
    ODataComparison.LT: operator.lt,
    ODataComparison.LE: operator.le,
}
FLIPPED = {
    ODataComparison.EQ: ODataComparison.EQ,
    ODataComparison.GT: ODataComparison.LT,
    ODataComparison.GE: ODataComparison.LE,
    ODataComparison.LT: ODataComparison.GT,
    ODataComparison.LE: ODataComparison.GE,
}
TEXT_MATCHERS: dict[MatchKind, Callable[[str, str], bool]] = {
    MatchKind.ANYWHERE: operator.contains,
    MatchKind.START: str.startswith,
    MatchKind.END: str.endswith,
}
CASE_FUNCTIONS: dict[LetterCase, Callable[[str], str]] = {LetterCase.LOWER: str.lower, LetterCase.UPPER: str.upper}

NOT_PRECEDENCE = 5
PRECEDENCE = {"or": 1, "and": 2, "eq": 3, "ne": 3, "gt": 4, "ge": 4, "lt": 4, "le": 4, "in": 6}
CONSTANTS = {
    "true": ODataLiteral(True, FieldKind.BOOLEAN),
    "false": ODataLiteral(False, FieldKind.BOOLEAN),
    "null": ODataLiteral(None, None),
}
FUNCTIONS: dict[str, LetterCase | MatchKind] = {function.value: function for function in (*MatchKind, *LetterCase)}
NUMERIC = (FieldKind.INTEGER, FieldKind.NUMBER)


class _ODataParser:
    """A Pratt parser: an operator takes the operands on its sides that bind more tightly than itself."""

    def __init__(self, text: str, fields: Fields) -> None:
        self.tokens = tokenize(text)
        self.fields = fields
        self.index = 0
        self.depth = -1
        self.lambdas = 0
        self.variable: tuple[str, str] | None = None  # inside of any() and all(): the variable and the collection

    @property
    def next(self) -> ODataToken:
        return self.tokens[self.index]

    def take(self) -> ODataToken:
        self.index += 1
        return self.tokens[self.index - 1]

    def accept(self, key: str) -> bool:
        self.index += (matched := self.next.key == key)
        return matched

    def require(self, key: str, expected: str = "") -> None:
        if not self.accept(key):
            self.fail(expected or f"{key!r}")

    def parse_condition(self, floor: int, advice: str = "") -> Node:
        at = self.next.at
        part = self.parse_expression(floor)
        if not _is_condition(part) and self.next.kind is not TokenKind.END and self.next.key not in (*PRECEDENCE, ")"):
            self.fail("an operator")
        return _require_condition(part, at, advice)

    def parse_expression(self, floor: int) -> Part:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            _fail(f"more than {MAX_DEPTH} levels deep", self.next.at)
        at = self.next.at
        left = self.parse_prefix()
        while (precedence := PRECEDENCE.get(self.next.key, 0)) > floor:
            left = self.parse_infix(left, at, self.take(), precedence)
        self.depth -= 1
        return left

    def parse_prefix(self) -> Part:
        token = self.next
        if (value := self.parse_literal()) is not None:
            return value
        match token.kind, token.key:
            case _, "(":
                self.take()
                inner = self.parse_expression(0)
                self.require(")", "an operator, and, or, or ')'")
                return inner
            case _, "not":
                self.take()
                return _negate(self.parse_condition(NOT_PRECEDENCE, "; put the comparison after not in parentheses"))
            case TokenKind.WORD, name:
                self.take()
                return self.parse_call(token) if self.next.key == "(" else self.parse_path(token, name)
        return self.fail("a field, a value or a condition")

    def parse_infix(self, left: Part, left_at: int, token: ODataToken, precedence: int) -> Node:
        match token.key:
            case "or":
                return ODataOr(
                    (*_flatten(_require_condition(left, left_at), ODataOr), self.parse_condition(precedence))
                )
            case "and":
                return ODataAnd(
                    (*_flatten(_require_condition(left, left_at), ODataAnd), self.parse_condition(precedence))
                )
            case "in":
                return _contains(left, self.parse_items(), token.at)
            case "ne":
                return _negate(_compare(ODataComparison.EQ, left, self.parse_expression(precedence), token.at))
        return _compare(ODataComparison(token.key), left, self.parse_expression(precedence), token.at)

    def parse_literal(self) -> ODataLiteral | None:
        token = self.next
        try:
            value = CONSTANTS.get(token.key) or parse_literal(token)
        except ValueError as problem:
            _fail(str(problem), token.at)
        if value is not None:
            self.take()
        return value

    def parse_items(self) -> list[ODataLiteral | CaseFold]:
        self.require("(")
        items = list[ODataLiteral | CaseFold]()
        while not items or self.accept(","):
            at = self.next.at
            if len(items) == MAX_ITEMS:
                _fail(f"a list has at most {MAX_ITEMS} elements", at)
            item = self.parse_prefix()
            if not _is_constant(item):
                _fail("expected a literal", at)
            items.append(item)
        self.require(")", "',' or ')'")
        return items

    def parse_call(self, name: ODataToken) -> Part:
        function = FUNCTIONS.get(name.text)
        if function is None:
            _fail(f"unknown function {name.text!r}. Valid functions: {', '.join(FUNCTIONS)}", name.at)
        self.require("(")
        first = self.parse_text(function)
        if isinstance(function, LetterCase):
            self.require(")")
            return _fold_case(function, first)
        self.require(",")
        second = self.parse_text(function)
        self.require(")")
        return _match_text(function, first, second)

    def parse_text(self, function: LetterCase | MatchKind) -> Value:
        at = self.next.at
        operand = self.parse_expression(0)
        if isinstance(operand, ODataField | CaseFold | ODataLiteral) and operand.kind in (FieldKind.TEXT, None):
            return operand
        return _fail(f"{function.value} requires text, but {_describe(operand)}", at)

    def parse_path(self, token: ODataToken, name: str) -> Part:
        if self.variable and name == self.variable[0] and self.accept("/"):
            return self.parse_element(self.variable[1])
        match self.fields.get(name):
            case FieldKind() as kind:
                return ODataField(name, kind)
            case Collection(members) if not members:
                _fail(f"{name} is an array, which a filter cannot use", token.at)
            case Collection():
                self.require("/", f"'/any(…)' or '/all(…)' after the collection {name}")
                return self.parse_quantifier(name)
        if self.variable and name == self.variable[0]:
            self.fail(f"'/' and a field of {name}")
        return fail_unknown_field(name, self.fields, "$filter", position=token.at)

    def parse_element(self, collection: str) -> ODataField:
        if self.next.kind is not TokenKind.WORD:
            self.fail(f"a field of {collection}")
        token, members = self.take(), self.members(collection)
        if token.text not in members:
            fail_unknown_field(token.text, members, "$filter", position=token.at)
        return ODataField(token.text, members[token.text], collection)

    def members(self, collection: str) -> Mapping[str, FieldKind]:
        declared = self.fields[collection]
        assert isinstance(declared, Collection)
        return declared.fields

    def parse_quantifier(self, collection: str) -> Node:
        if self.next.key not in ("any", "all"):
            self.fail("any or all")
        quantifier = self.take()
        if self.variable:
            _fail("any and all cannot be nested", quantifier.at)
        self.lambdas += 1
        if self.lambdas > MAX_LAMBDAS:
            _fail(f"any and all are used more than {MAX_LAMBDAS} times", quantifier.at)
        self.require("(")
        if quantifier.text == "any" and self.accept(")"):
            return Exists(collection, None)
        if self.next.kind is not TokenKind.WORD:
            self.fail("a variable, as in any(x: x/name eq 'y')")
        self.variable = self.take().text, collection
        self.require(":")
        body = self.parse_condition(0)
        self.require(")", "an operator, and, or, or ')'")
        self.variable = None
        if quantifier.text == "any":
            return Exists(collection, body)
        return _negate(Exists(collection, _negate(_test_truth(body, True))))

    def fail(self, expected: str) -> NoReturn:
        token = self.next
        problem = f"expected {expected}"
        if token.kind is TokenKind.BAD:
            problem = "a quote is not closed" if token.text == "'" else f"unexpected character {token.text!r}"
        _fail(problem, token.at)


def _is_condition(part: Part) -> TypeGuard[ODataField | Node]:
    return not isinstance(part, ODataField | CaseFold | ODataLiteral) or part.kind is FieldKind.BOOLEAN


def _require_condition(part: Part, at: int, advice: str = "") -> Node:
    if not _is_condition(part):
        _fail(f"expected a condition, but {_describe(part)}{advice}", at)
    return part


def _negate(node: Node) -> Node:
    return node.operand if isinstance(node, ODataNot) else ODataNot(node)


def _test_truth(node: Node, value: bool | None) -> Node:
    """Return the condition that another condition has a value."""
    match node:
        case ODataNot(operand):
            return _test_truth(operand, None if value is None else not value)
        case ODataField():
            return ODataCompare(ODataComparison.EQ, node, ODataLiteral(value, None if value is None else node.kind))
        case ODataLiteral(constant):
            return _boolean_literal(constant is value)
    if not is_never_null(node):
        return TruthTest(node, value)
    if value is None:
        return _boolean_literal(False)
    return node if value else _negate(node)


def _flatten(node: Node, node_class: type[ODataAnd] | type[ODataOr]) -> tuple[Node, ...]:
    return node.parts if isinstance(node, node_class) else (node,)


def _compare(op: ODataComparison, left: Part, right: Part, at: int) -> Node:
    if _is_constant(left) and not _is_constant(right):
        op, left, right = FLIPPED[op], right, left
    if isinstance(left, ODataField | CaseFold | ODataLiteral) and isinstance(
        right, ODataField | CaseFold | ODataLiteral
    ):
        left, right = _unify(left, right, at)
        if isinstance(left, ODataLiteral) or _is_constant(left):
            return _boolean_literal(_evaluate(op, _constant(left), _constant(right)))
        return ODataCompare(op, left, right)
    if isinstance(right, ODataLiteral) and right.kind in (FieldKind.BOOLEAN, None):
        condition = _require_condition(left, at)
        if op is ODataComparison.EQ:
            return _test_truth(condition, right.value)
        match _evaluate(op, False, right.value), _evaluate(op, True, right.value):
            case False, True:
                return _test_truth(condition, True)
            case True, False:
                return _test_truth(condition, False)
            case True, True:
                return _negate(_test_truth(condition, None))
        return _boolean_literal(False)
    return _fail("a condition can be compared only with true, false and null; use and, or and not", at)


def _contains(operand: Part, items: list[ODataLiteral | CaseFold], at: int) -> Node:
    if not isinstance(operand, ODataField | CaseFold | ODataLiteral):
        _fail("in requires a field or a value, but this is a condition; use parentheses", at)
    alike = [_unify(operand, item, at) for item in items]
    if isinstance(operand, ODataLiteral) or _is_constant(operand):
        equal = (_evaluate(ODataComparison.EQ, _constant(left), _constant(right)) for left, right in alike)
        return _boolean_literal(any(equal))
    return ODataIn(operand, tuple(right for _, right in alike if not isinstance(right, ODataField)))


def _match_text(kind: MatchKind, whole: Value, part: Value) -> Node:
    if _is_constant(whole) and _is_constant(part):
        texts = _constant(whole), _constant(part)
        return _boolean_literal(None if None in texts else TEXT_MATCHERS[kind](*texts))
    return TextMatch(kind, whole, part)


def _fold_case(case: LetterCase, operand: Value) -> Value:
    match operand:
        case ODataLiteral(None):
            return operand
        case CaseFold(_, inner) | (ODataField() | ODataLiteral() as inner):
            return CaseFold(case, inner)


def _is_constant(part: Part) -> TypeGuard[ODataLiteral | CaseFold]:
    return isinstance(part, ODataLiteral) or (isinstance(part, CaseFold) and isinstance(part.operand, ODataLiteral))


def _constant(value: Value) -> Any:
    """Return the value of an operand that needs no row."""
    match value:
        case ODataLiteral(plain):
            return plain
        case CaseFold(case, ODataLiteral(text)):
            return CASE_FUNCTIONS[case](text)
    raise TypeError(f"{value} needs a row")


def _evaluate(op: ODataComparison, left: Any, right: Any) -> bool:
    if left is None or right is None:
        return op is ODataComparison.EQ and left is right
    return OPERATORS[op](left, right)


def _boolean_literal(value: bool | None) -> ODataLiteral:
    return ODataLiteral(value, FieldKind.BOOLEAN)


def _unify(left: Value, right: Value, at: int) -> tuple[Value, Value]:
    """Return both operands with comparable types: a literal is converted to the type of the other side."""
    if left.kind == right.kind or None in (left.kind, right.kind) or {left.kind, right.kind} == set(NUMERIC):
        return left, right
    if isinstance(right, CaseFold) and _is_constant(right):
        right = ODataLiteral(_constant(right), FieldKind.TEXT)
    try:
        if converted := _convert_literal(left, right.kind):
            return converted, right
        if converted := _convert_literal(right, left.kind):
            return left, converted
    except ValueError as problem:
        _fail(f"{_describe(left)} and {_describe(right)}; {problem}", at)
    return _fail(f"{_describe(left)} and {_describe(right)}; they cannot be compared{_advice(left, right)}", at)


def _convert_literal(value: Value, kind: FieldKind | None) -> ODataLiteral | None:
    match value, kind:
        case ODataLiteral(str() as text, FieldKind.TEXT), FieldKind.GUID | FieldKind.INSTANT | FieldKind.DATE:
            return ODataLiteral(TEXT_PARSERS[kind](text), kind)
        case ODataLiteral(day, FieldKind.DATE), FieldKind.INSTANT:
            return ODataLiteral(TEXT_PARSERS[kind](day.isoformat()), kind)
    return None


def _advice(left: Value, right: Value) -> str:
    value, other = (left, right) if isinstance(left, ODataLiteral) else (right, left)
    if isinstance(value, ODataLiteral) and other.kind is FieldKind.TEXT:
        return "; write text in quotes"
    if isinstance(value, ODataLiteral) and value.kind is FieldKind.TEXT:
        return "; write it without quotes"
    return ""


def _describe(part: Part) -> str:
    match part:
        case ODataField(name, kind):
            return f"{name} is {kind.value}"
        case CaseFold(case, ODataField(name)):
            return f"{case.value}({name}) is text"
        case CaseFold(case, ODataLiteral(text)):
            return f"{case.value}('{text:.40}') is text"
        case ODataLiteral(str() as text, FieldKind.TEXT):
            return f"'{text:.40}' is text"
        case ODataLiteral(None):
            return "null is not a condition"
        case ODataLiteral(value, kind) if kind is not None:
            return f"{str(value).lower() if kind is FieldKind.BOOLEAN else str(value)[:40]} is {kind.value}"
    return "this is a condition"


def _fail(problem: str, position: int) -> NoReturn:
    raise Invalid("bad_filter", {"problem": problem}, position=position, option="$filter")
