"""Layout of the pages: sign-in, theme, navigation and the request guard."""

import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID, uuid4

import httpx
import pytest
from playwright.sync_api import Browser, expect

from penstock.core.caller import Role
from penstock.ui.formatting import to_sentence
from ui.conftest import NARROW, PENSTOCK, WIDE, PageMonitor, Service, Visit, serve, token


def test_sign_in_with_token_opens_page_and_sign_out_closes_it(visit: Visit, tenant: UUID) -> None:
    page = visit("/", Role.VIEWER, sent=f"Bearer {token(tenant, Role.VIEWER)}")
    expect(page.get_by_text("ada · viewer")).to_be_visible()
    page.get_by_label("Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Token")).to_be_visible()


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("dark", [False, True])
def test_theme_follows_system_until_user_switches_it(visit: Visit, width: int, dark: bool) -> None:
    page = visit("/", width=width, dark=dark)
    is_dark = "document.body.classList.contains('body--dark')"
    assert page.evaluate(is_dark) is dark
    page.get_by_label("Switch theme").click()
    page.wait_for_function(f"{is_dark} === {'false' if dark else 'true'}")
    page.reload()
    page.get_by_role("heading", level=1).first.wait_for()
    page.wait_for_function(f"{is_dark} === {'false' if dark else 'true'}")


def test_navigation_works_by_keyboard_and_on_narrow_screens(visit: Visit) -> None:
    page = visit("/")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()
    expect(page.get_by_role("link", name="Home")).to_have_attribute("aria-current", "page")
    narrow_page = visit("/", width=NARROW)
    narrow_page.get_by_role("button", name="Sections").click()
    expect(narrow_page.get_by_role("menuitem", name="Home")).to_be_visible()
    expect(narrow_page.get_by_role("menu").get_by_text("ada · admin")).to_be_visible()


def test_sign_in_with_invalid_token_shows_error(service: Service, visit: Visit) -> None:
    page = visit("/")
    page.get_by_label("Sign out").click()
    page.get_by_label("Token").fill("<b>not a token</b>")
    page.get_by_label("Token").press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("The token is not a valid JWT")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 200),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "https://[evil"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
    ],
)
def test_request_guard_rejects_other_origins(service: Service, headers: dict[str, str], code: int) -> None:
    assert httpx.get(f"{service.address}/ui/", headers=headers).status_code == code
    polling = f"{service.address}/ui/_nicegui_ws/socket.io/?EIO=4&transport=polling"
    assert (httpx.get(polling, headers=headers).status_code == 403) == (code == 403)


def test_content_security_policy_blocks_other_origins(service: Service) -> None:
    answer = httpx.get(f"{service.address}/ui", follow_redirects=True)
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert "http:" not in answer.headers["content-security-policy"]


def test_request_guard_rejects_large_bodies_before_reading(service: Service) -> None:
    host, _, port = service.address.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(f"POST /ui/x HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-length: {1 << 40}\r\n\r\n".encode())
        assert connection.recv(64).startswith(b"HTTP/1.1 413")
    assert httpx.post(f"{service.address}/ui/x", content=iter([b"x"])).status_code == 411


def test_expired_token_sign_in_again_keeps_input(service: Service, tenant: UUID, visit: Visit) -> None:
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
    dialog = page.get_by_role("dialog", name="Sign in again")
    dialog.get_by_label("Token").fill(token(tenant))
    dialog.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name="Save Schema").click()
    expect(page.get_by_text("Schema “kept” was created.")).to_be_visible()


def test_unknown_address_shows_not_found_with_link_back(visit: Visit) -> None:
    page = visit("/", dark=True, expect=("404",))
    for path, title in (
        ("/nope", "Page not found"),
        ("/schemas/nope", "Page not found"),
        ("/runs/7c0e6f0e-2d3c-4f0a-9d55-0a4f8f1b2c3d", "Not found"),
    ):
        page.goto(page.url.split("/ui")[0] + "/ui" + path)
        expect(page.get_by_role("heading", name=title, exact=True)).to_be_visible()
        page.get_by_role("link", name="‹ ").first.click()
        page.get_by_role("heading", level=1).first.wait_for()


def test_service_restart_shows_lost_page_and_keeps_input(tmp_path: Path, chromium: Browser) -> None:
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
        expect(page.get_by_role("alert")).to_contain_text(
            "The service has discarded the state of this page", timeout=60_000
        )
        expect(page.get_by_label("Schema name")).to_have_value("kept")
    page.close()


def test_dev_mode_needs_no_sign_in(tmp_path: Path, chromium: Browser) -> None:
    with contextmanager(serve)(tmp_path, "--dev") as service:
        context = chromium.new_context()
        monitor, page = PageMonitor(context, service.address), context.new_page()
        page.goto(f"{service.address}/ui")
        expect(page.get_by_role("heading", level=1)).to_have_text("Home")
        expect(page.get_by_label("Sign out")).to_have_count(0)
        page.get_by_role("link", name="All: Recent runs").click()
        expect(page.get_by_text("No runs yet.")).to_be_visible()
        page.get_by_role("main").get_by_role("button", name="Pipelines").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Pipelines")
        context.close()
        monitor.assert_no_errors()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("the schema does not exist", "The schema does not exist."),
        ("version 7 does not exist; the newest is 1", "Version 7 does not exist; the newest is 1."),
        ("a.b has moved past version 3", "a.b has moved past version 3."),
        ("$filter: expected a value", "$filter: expected a value."),
        ("Is it so?", "Is it so?"),
    ],
)
def test_to_sentence_adds_capital_letter_and_full_stop(message: str, expected: str) -> None:
    assert to_sentence(message) == expected


@pytest.mark.parametrize("dark", [False, True])
def test_keyboard_focus_is_visible_in_both_themes(visit: Visit, dark: bool) -> None:
    page = visit("/schemas", dark=dark)
    visited = set[str]()
    for _ in range(12):
        page.keyboard.press("Tab")
        name, style, width, in_field = page.evaluate(
            """() => {
              const element = document.activeElement, {outlineStyle, outlineWidth} = getComputedStyle(element);
              return [element.tagName + element.textContent, outlineStyle, parseFloat(outlineWidth),
                      element.closest(".q-field--focused") !== null];
            }"""
        )
        if name.startswith("BODY"):
            break
        visited.add(name)
        assert in_field or (style == "solid" and width >= 2), (name, style, width)
    assert len(visited) > 5
