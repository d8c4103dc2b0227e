"""The options of a query string, each read once and all of them known."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from penstock.core.names import unstorable
from penstock.core.odata.parser import parse, unknown_field
from penstock.core.odata.nodes import Collection, Field, Fields, Node
from penstock.errors import Invalid

MAX_SKIP = 2**31
MAX_SEARCH = 1_000  # characters
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~$")
NAMES = ("$filter", "$orderby", "$top", "$skip", "$select", "$count", "$search")


@dataclass(frozen=True, slots=True)
class Order:
    field: Field
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    filter: Node | None
    orderby: tuple[Order, ...]
    top: int  # the size of a page, within what the server allows
    skip: int
    select: tuple[str, ...] | None  # None: everything
    count: bool
    search: tuple[str, ...]  # words and phrases that must all occur, in any case


def options(
    pairs: Sequence[tuple[str, str]],
    fields: Fields,
    *,
    default_top: int,
    max_top: int,
    also: Sequence[str] = (),
    selectable: Sequence[str] = (),
) -> Options:
    """What the pairs of a query string ask for.

    `also` names the parameters that somebody else reads. `selectable` names what `$select` may hold besides the fields.
    """
    given = dict[str, str]()
    for name, value in pairs:
        if name in also:
            continue
        if name not in NAMES:
            known = ", ".join((*NAMES, *also))
            raise Invalid("unknown_option", f"there is no option {name!r}; there are {known}", option=name)
        if name in given:
            _refuse(name, "it is given twice")
        given[name] = value

    asked = given.get
    filter, orderby, select = asked("$filter"), asked("$orderby"), asked("$select")
    return Options(
        filter=None if filter is None else parse(filter, fields),
        orderby=() if orderby is None else _orderby(orderby, fields),
        top=min(_whole("$top", asked("$top", str(default_top))), max_top),
        skip=_whole("$skip", asked("$skip", "0")),
        select=None if select is None else _select(select, (*fields, *selectable)),
        count=_boolean("$count", asked("$count", "false")),
        search=_search(asked("$search", "")),
    )


def next_page(pairs: Sequence[tuple[str, str]], options: Options) -> str | None:
    """The query string that asks for the page after this one; None where there can be none."""
    skip = options.skip + options.top
    if options.top == 0 or skip > MAX_SKIP:
        return None
    kept = [(name, value) for name, value in pairs if name != "$skip"]
    return "&".join(f"{_escaped(name)}={_escaped(value)}" for name, value in [*kept, ("$skip", str(skip))])


def _escaped(text: str) -> str:
    """As a part of a query string; `$` may stand there as it is."""
    return "".join(chr(byte) if chr(byte) in _PLAIN else f"%{byte:02X}" for byte in text.encode(errors="replace"))


def _orderby(text: str, fields: Fields) -> tuple[Order, ...]:
    orders = list[Order]()
    for item in text.split(","):
        name, *direction = item.split() or [""]
        kind = fields.get(name)
        match kind, direction:
            case None, _ if name:
                unknown_field(name, fields, "$orderby")
            case Collection(), _:
                _refuse("$orderby", f"{name} is a collection and has no order")
            case None, _:
                _refuse("$orderby", "expected a field; write for example 'name desc, id'")
            case _, [] | ["asc"] | ["desc"]:
                orders.append(Order(Field(name, kind), direction == ["desc"]))
            case _:
                _refuse("$orderby", f"expected asc or desc after {name}, and there is {' '.join(direction)!r}")
    names = [order.field.name for order in orders]
    if twice := next((name for name in names if names.count(name) > 1), None):
        _refuse("$orderby", f"{twice} is given twice")
    return tuple(orders)


def _select(text: str, known: Sequence[str]) -> tuple[str, ...] | None:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known and name != "*":
            unknown_field(name, dict.fromkeys(known), "$select")
    return None if "*" in names else tuple(dict.fromkeys(names))


def _whole(option: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) > MAX_SKIP:
        _refuse(option, f"expected a whole number from 0 to {MAX_SKIP}")
    return int(text)


def _boolean(option: str, text: str) -> bool:
    if text not in ("true", "false"):
        _refuse(option, "expected true or false")
    return text == "true"


_WORD = re.compile(r'\s*(?:"([^"]*)"|([^\s"]+))')


def _search(text: str) -> tuple[str, ...]:
    if len(text) > MAX_SEARCH:
        _refuse("$search", f"there are more than {MAX_SEARCH:,} characters")
    if text.count('"') % 2:
        _refuse("$search", "a quote is not closed")
    if unstorable(text):
        _refuse("$search", "text cannot hold the character NUL or half of a surrogate pair")
    found = [phrase or word for phrase, word in _WORD.findall(text)]
    return tuple(dict.fromkeys(word for word in found if word))


def _refuse(option: str, problem: str) -> NoReturn:
    raise Invalid("bad_option", f"{option}: {problem}", option=option)
