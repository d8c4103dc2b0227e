"""The page of a search."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class SearchPage(Generic[T]):
    """One page of search results."""

    items: list[T]
    next_key: tuple[Any, ...] | None  # sort key of the last item, if more items match
    count: int | None  # number of all matches, if requested
