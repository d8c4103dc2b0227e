"""The frame of every page: who gets in, how, and what nobody can do to it."""

import socket
from uuid import UUID

import httpx
import pytest
from playwright.sync_api import expect

from penstock.core.caller import Role
from ui.conftest import NARROW, WIDE, Service, Visit, token


def test_a_token_opens_the_page_and_signing_out_closes_it(visit: Visit) -> None:
    page = visit("/", Role.VIEWER)
    expect(page.get_by_text("ada · viewer")).to_be_visible()
    page.get_by_label("Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Token")).to_be_visible()


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("dark", [False, True])
def test_the_theme_follows_the_system_until_it_is_chosen(visit: Visit, width: int, dark: bool) -> None:
    page = visit("/", width=width, dark=dark)
    is_dark = "document.body.classList.contains('body--dark')"
    assert page.evaluate(is_dark) is dark
    page.get_by_label("Light or dark").click()
    page.wait_for_function(f"{is_dark} === {'false' if dark else 'true'}")
    page.reload()
    page.get_by_role("heading", level=1).first.wait_for()
    page.wait_for_function(f"{is_dark} === {'false' if dark else 'true'}")


def test_sections_are_reached_by_keyboard_and_on_a_telephone(visit: Visit) -> None:
    page = visit("/")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()
    expect(page.get_by_role("link", name="Home")).to_have_attribute("aria-current", "page")
    narrow = visit("/", width=NARROW)
    narrow.get_by_role("button", name="Sections").click()
    expect(narrow.get_by_role("menuitem", name="Home")).to_be_visible()


def test_a_bad_token_is_refused_in_words(service: Service, visit: Visit) -> None:
    page = visit("/")
    page.get_by_label("Sign out").click()
    page.get_by_label("Token").fill("<b>not a token</b>")
    page.get_by_label("Token").press("Enter")
    expect(page.get_by_text("the token is not a JWT that can be read")).to_be_visible()


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 200),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "https://[evil"}, 403),
    ],
)
def test_pages_of_other_sites_are_refused(service: Service, headers: dict[str, str], code: int) -> None:
    assert httpx.get(f"{service.address}/ui/", headers=headers).status_code == code
    polling = f"{service.address}/ui/_nicegui_ws/socket.io/?EIO=4&transport=polling"
    assert (httpx.get(polling, headers=headers).status_code == 403) == (code == 403)


def test_a_page_may_load_nothing_from_elsewhere(service: Service) -> None:
    answer = httpx.get(f"{service.address}/ui", follow_redirects=True)
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert "http:" not in answer.headers["content-security-policy"]


def test_large_bodies_are_refused_before_they_are_read(service: Service) -> None:
    host, _, port = service.address.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as place:
        place.sendall(f"POST /ui/x HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-length: {1 << 40}\r\n\r\n".encode())
        assert place.recv(64).startswith(b"HTTP/1.1 413")
    assert httpx.post(f"{service.address}/ui/x", content=iter([b"x"])).status_code == 411


def test_an_expired_token_is_renewed_without_losing_what_was_written(
    service: Service, tenant: UUID, visit: Visit
) -> None:
    short = token(tenant, seconds=6)
    page = visit("/schemas/new", sent=short)
    page.get_by_label("Schema type").click()
    page.get_by_role("option", name="Query Returns Schema").click()
    page.get_by_label("Schema name").fill("kept")
    page.get_by_role("button", name="Add Field").click()
    page.get_by_label("Name", exact=True).fill("id")
    while httpx.get(f"{service.address}/me", headers={"authorization": f"Bearer {short}"}).status_code != 401:
        page.wait_for_timeout(500)
    page.get_by_role("button", name="Save Schema").click()
    again = page.get_by_role("dialog", name="Sign in again")
    again.get_by_label("Token").fill(token(tenant))
    again.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name="Save Schema").click()
    expect(page.get_by_text("Schema “kept” was created.")).to_be_visible()


def test_an_address_without_a_page_says_so_and_leads_back(visit: Visit) -> None:
    page = visit("/", dark=True, expect=("404",))
    for path in ("/nope", "/schemas/nope", "/runs/7c0e6f0e-2d3c-4f0a-9d55-0a4f8f1b2c3d"):
        page.goto(page.url.split("/ui")[0] + "/ui" + path)
        expect(page.get_by_role("heading", name="That did not work")).to_be_visible()
        page.get_by_role("link", name="‹ ").first.click()
        page.get_by_role("heading", level=1).first.wait_for()
