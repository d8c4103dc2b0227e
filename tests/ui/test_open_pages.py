"""The limit of open pages: in total, and of those that an address opens without connecting."""

from types import SimpleNamespace
from typing import Any

import pytest
from nicegui import Client

from penstock.ui import mount
from penstock.ui.mount import OpenPages


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replace the pages of this process by an empty collection."""
    pages = dict[str, Any]()
    monkeypatch.setattr(Client, "instances", pages)
    return pages


def open_pages(pages: dict[str, Any], address: str, count: int) -> list[str]:
    ids = [f"{address} {len(pages) + number}" for number in range(count)]
    pages.update((id, SimpleNamespace(id=id, ip=address)) for id in ids)
    return ids


def test_address_with_many_pages_that_never_connect_is_rejected(pages: dict[str, Any]) -> None:
    limit = OpenPages()
    ids = open_pages(pages, "10.0.0.1", mount._MAX_CONNECTING_PAGES_PER_ADDRESS - 1)
    assert limit.accepts("10.0.0.1")
    ids += open_pages(pages, "10.0.0.1", 1)
    assert not limit.accepts("10.0.0.1")
    assert limit.accepts("10.0.0.2")
    limit.mark_connected(pages[ids[0]])
    assert limit.accepts("10.0.0.1")


def test_pages_that_never_connect_are_limited_in_total(pages: dict[str, Any]) -> None:
    limit = OpenPages()
    for number in range(mount._MAX_CONNECTING_PAGES):
        assert limit.accepts("10.0.0.1")
        open_pages(pages, f"10.1.0.{number}", 1)
    assert not limit.accepts("10.0.0.1")


def test_connected_pages_are_limited_in_total(pages: dict[str, Any]) -> None:
    limit = OpenPages()
    for id in open_pages(pages, "10.0.0.1", mount._MAX_OPEN_PAGES - 1):
        limit.mark_connected(pages[id])
    assert limit.accepts("10.0.0.1")
    limit.mark_connected(pages[open_pages(pages, "10.0.0.2", 1)[0]])
    assert not limit.accepts("10.0.0.1")


def test_closed_pages_are_forgotten(pages: dict[str, Any]) -> None:
    limit = OpenPages()
    (id,) = open_pages(pages, "10.0.0.1", 1)
    limit.mark_connected(pages[id])
    pages.clear()
    assert limit.accepts("10.0.0.1")
    assert not limit._connected
