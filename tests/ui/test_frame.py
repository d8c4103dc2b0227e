"""The frame of every page: who gets in, how, and what nobody can do to it."""

import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID, uuid4

import httpx
import pytest
from playwright.sync_api import Browser, expect

from penstock.core.caller import Role
from penstock.ui.formatting import sentence
from ui.conftest import NARROW, PENSTOCK, WIDE, Service, Visit, Watch, serve, token


def test_a_token_opens_the_page_and_signing_out_closes_it(visit: Visit, tenant: UUID) -> None:
    page = visit("/", Role.VIEWER, sent=f"Bearer {token(tenant, Role.VIEWER)}")
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
    expect(narrow.get_by_role("menu").get_by_text("ada · admin")).to_be_visible()


def test_a_bad_token_is_refused_in_words(service: Service, visit: Visit) -> None:
    page = visit("/")
    page.get_by_label("Sign out").click()
    page.get_by_label("Token").fill("<b>not a token</b>")
    page.get_by_label("Token").press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("The token is not a JWT that can be read")


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


def test_a_page_that_the_service_has_forgotten_says_so_and_keeps_what_was_written(
    tmp_path: Path, chromium: Browser
) -> None:
    subprocess.run([PENSTOCK, "init", "--workspace", str(tmp_path / "lake")], check=True)
    served = contextmanager(serve)
    with served(tmp_path) as service:
        page = chromium.new_page()
        page.set_default_timeout(60_000)
        page.goto(f"{service.address}/ui/schemas/new")
        page.get_by_label("Token").fill(token(uuid4()))
        page.get_by_label("Token").press("Enter")
        page.get_by_label("Schema type").click()
        page.get_by_role("option", name="Query Returns Schema").click()
        page.get_by_label("Schema name").fill("kept")
        page.wait_for_function("window.penstockUnsaved === true")
    port = service.address.rpartition(":")[2]
    page.once("dialog", lambda dialog: dialog.dismiss())
    with page.expect_event("dialog"), served(tmp_path, "--http-port", port):
        expect(page.get_by_role("alert")).to_contain_text("The service has forgotten this page", timeout=60_000)
        expect(page.get_by_label("Schema name")).to_have_value("kept")
    page.close()


def test_without_a_login_there_is_none(tmp_path: Path, chromium: Browser) -> None:
    with contextmanager(serve)(tmp_path, "--dev") as service:
        context = chromium.new_context()
        watch, page = Watch(context, service.address), context.new_page()
        page.goto(f"{service.address}/ui")
        expect(page.get_by_role("heading", level=1)).to_have_text("Home")
        expect(page.get_by_label("Sign out")).to_have_count(0)
        page.get_by_role("link", name="Runs", exact=True).or_(page.get_by_role("link", name="All: Runs")).click()
        expect(page.get_by_text("Nothing has run yet.")).to_be_visible()
        page.get_by_role("main").get_by_role("button", name="Pipelines").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Pipelines")
        context.close()
        watch.assert_nothing()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("there is no such schema", "There is no such schema."),
        ("version 7 does not exist; the newest is 1", "Version 7 does not exist; the newest is 1."),
        ("a.b has moved past version 3", "a.b has moved past version 3."),
        ("$filter: expected a value", "$filter: expected a value."),
        ("Is it so?", "Is it so?"),
    ],
)
def test_what_the_service_says_is_told_as_a_sentence(said: str, told: str) -> None:
    assert sentence(said) == told
