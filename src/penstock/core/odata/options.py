"""Parse OData query options from a query string."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from penstock.core.names import has_invalid_characters
from penstock.core.odata import skiptoken
from penstock.core.odata.nodes import Collection, Fields, Node, ODataField
from penstock.core.odata.parser import fail_unknown_field, parse
from penstock.core.odata.skiptoken import SkipToken
from penstock.errors import Invalid

MAX_SKIP = 2**31
MAX_SEARCH_LENGTH = 1_000  # characters
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~$")
NAMES = ("$filter", "$orderby", "$top", "$skip", "$select", "$count", "$search", "$skiptoken")
_POSITION_NAMES = ("$top", "$skip", "$skiptoken")  # replaced in a next link


@dataclass(frozen=True, slots=True)
class OrderBy:
    field: ODataField
    descending: bool = False


@dataclass(frozen=True, slots=True)
class QueryOptions:
    filter: Node | None
    orderby: tuple[OrderBy, ...]
    top: int  # maximum number of items of this page
    skip: int
    select: tuple[str, ...] | None  # None: all fields
    count: bool
    search: tuple[str, ...]  # words and phrases that must all occur, ignoring case
    limit: int | None = None  # what `$top` allows for this page and all following ones; None: no limit
    after: tuple[Any, ...] | None = None  # sort key of the item before this page, from `$skiptoken`


def options(
    pairs: Sequence[tuple[str, str]],
    fields: Fields,
    *,
    default_top: int,
    max_top: int,
    also: Sequence[str] = (),
    selectable: Sequence[str] = (),
    preferred_page: int | None = None,
) -> QueryOptions:
    """Parse the options of a query string.

    Args:
        pairs: names and values, decoded
        fields: fields for `$filter`, `$orderby` and `$select`
        default_top: page size without `$top`
        max_top: maximum page size
        also: parameters that another component reads
        selectable: further names for `$select`
        preferred_page: page size that the client prefers
    """
    values = dict[str, str]()
    for name, value in pairs:
        if name in also:
            continue
        if name not in NAMES:
            valid = [*NAMES, *also]
            raise Invalid("unknown_option", {"valid": valid}, option=name)
        if name in values:
            _fail(name, "specified twice")
        values[name] = value

    value_of = values.get
    filter, orderby, select = value_of("$filter"), value_of("$orderby"), value_of("$select")
    limit = _parse_integer("$top", values["$top"]) if "$top" in values else None
    page_size, after = default_top if limit is None else max_top, None
    if (token_text := value_of("$skiptoken")) is not None:
        for name in ("$top", "$skip"):
            if name in values:
                _fail(name, "cannot be combined with $skiptoken; use the next link as it is")
        token = skiptoken.decode(token_text, values)
        limit, page_size, after = token.limit, token.page_size, token.key
    page_size = min(preferred_page or page_size, max_top)
    return QueryOptions(
        filter=None if filter is None else parse(filter, fields),
        orderby=() if orderby is None else _parse_orderby(orderby, fields),
        top=page_size if limit is None else min(page_size, limit),
        skip=_parse_integer("$skip", value_of("$skip", "0")),
        select=None if select is None else _parse_select(select, (*fields, *selectable)),
        count=_parse_boolean("$count", value_of("$count", "false")),
        search=_parse_search(value_of("$search", "")),
        limit=limit,
        after=after,
    )


def next_page(
    pairs: Sequence[tuple[str, str]], options: QueryOptions, key: tuple[Any, ...] | None, count: int
) -> str | None:
    """Return the query string of the next page; None if the response is complete.

    Args:
        pairs: names and values of the query string of this page
        options: the options of this page
        key: the sort key of the last item of this page; None: no more items match
        count: number of items of this page
    """
    limit = None if options.limit is None else options.limit - count
    if key is None or limit == 0 or options.top == 0:
        return None
    others = [(name, value) for name, value in pairs if name not in _POSITION_NAMES]
    token = skiptoken.encode(SkipToken(key, options.top, limit), dict(others))
    return "&".join(
        f"{_percent_encode(name)}={_percent_encode(value)}" for name, value in [*others, ("$skiptoken", token)]
    )


def _percent_encode(text: str) -> str:
    """Percent-encode a part of a query string; `$` is allowed as it is."""
    return "".join(chr(byte) if chr(byte) in _UNRESERVED else f"%{byte:02X}" for byte in text.encode(errors="replace"))


def _parse_orderby(text: str, fields: Fields) -> tuple[OrderBy, ...]:
    orders = list[OrderBy]()
    for item in text.split(","):
        name, *direction = item.split() or [""]
        kind = fields.get(name)
        match kind, direction:
            case None, _ if name:
                fail_unknown_field(name, fields, "$orderby")
            case Collection(), _:
                _fail("$orderby", f"{name} is a collection and cannot be sorted by")
            case None, _:
                _fail("$orderby", "expected a field; write for example 'name desc, id'")
            case _, [] | ["asc"] | ["desc"]:
                orders.append(OrderBy(ODataField(name, kind), direction == ["desc"]))
            case _:
                _fail("$orderby", f"expected asc or desc after {name}, not {' '.join(direction)!r}")
    names = [order.field.name for order in orders]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        _fail("$orderby", f"field {duplicate} is specified twice")
    return tuple(orders)


def _parse_select(text: str, valid_names: Sequence[str]) -> tuple[str, ...] | None:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in valid_names and name != "*":
            fail_unknown_field(name, dict.fromkeys(valid_names), "$select")
    return None if "*" in names else tuple(dict.fromkeys(names))


def _parse_integer(option: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) > MAX_SKIP:
        _fail(option, f"expected an integer from 0 to {MAX_SKIP}")
    return int(text)


def _parse_boolean(option: str, text: str) -> bool:
    if text not in ("true", "false"):
        _fail(option, "expected true or false")
    return text == "true"


_SEARCH_TERM = re.compile(r'\s*(?:"([^"]*)"|([^\s"]+))')


def _parse_search(text: str) -> tuple[str, ...]:
    if len(text) > MAX_SEARCH_LENGTH:
        _fail("$search", f"more than {MAX_SEARCH_LENGTH:,} characters")
    if text.count('"') % 2:
        _fail("$search", "a quote is not closed")
    if has_invalid_characters(text):
        _fail("$search", "text must not contain NUL or an unpaired surrogate")
    terms = [phrase or word for phrase, word in _SEARCH_TERM.findall(text)]
    return tuple(dict.fromkeys(word for word in terms if word))


def _fail(option: str, problem: str) -> NoReturn:
    raise Invalid("bad_option.odata", {"problem": problem}, option=option)
