"""Fixtures of the UI tests: a real service, a real Chromium, and users of one tenant with their roles."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Dialog, Page, expect, sync_playwright

from conftest import skip_untested
from penstock.core.caller import Role
from penstock.service.auth.tokens import mint

SECRET = "a secret of enough bytes, for the pages only"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
PENSTOCK = str(Path(sys.executable).with_name("penstock"))
HOUR, LEEWAY = timedelta(hours=1), timedelta(seconds=30)  # the clock leeway of the service
WIDE, NARROW = 1280, 390
CHECK_MILLISECONDS = 150
TIMEOUT_MILLISECONDS = 60_000  # for a condition: a busy machine may need seconds
expect.set_options(timeout=TIMEOUT_MILLISECONDS)
WIDTH = """
let wider = 0;  // number of checks in a row: a moving element may be wider for a moment
setInterval(() => {
  const {scrollWidth, clientWidth} = document.documentElement ?? {};  // missing while a page starts to load
  wider = scrollWidth > clientWidth && location.pathname.startsWith("/ui") ? wider + 1 : 0;
  if (wider === 2) console.error(`${location.href} is ${scrollWidth - clientWidth} pixels wider than the screen`);
}, INTERVAL);
""".replace("INTERVAL", str(CHECK_MILLISECONDS))


def token(tenant: UUID, role: Role = Role.ADMIN, user: str = "ada", *, seconds: float = 3_600) -> str:
    """Mint a token that the service accepts for a number of seconds."""
    issued_at = datetime.now(UTC) - HOUR
    ttl = HOUR + timedelta(seconds=seconds) - LEEWAY
    return mint(SECRET, tenant=tenant, user=user, roles=[role.claim], ttl=ttl, now=issued_at)


@dataclass(frozen=True)
class Service:
    address: str
    process: subprocess.Popen[str]

    def rest(self, tenant: UUID, role: Role = Role.ADMIN, user: str = "ada") -> httpx.Client:
        return httpx.Client(
            base_url=self.address, headers={"authorization": f"Bearer {token(tenant, role, user)}"}, timeout=60
        )


def serve(folder: Path, *args: str, command: Sequence[str] = (PENSTOCK,)) -> Iterator[Service]:
    """Run `penstock serve` until the generator is closed. `command` starts Penstock."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "PYTEST_"))}
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            [*command, "serve", "--workspace", str(folder / "lake"), "--http-port", "0", "--no-flight", *args],
            cwd=folder,
            env={**environment, "PENSTOCK_DURABLE": "no", "PENSTOCK_JWT_SECRET": SECRET},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("Penstock listens on "), (folder / "log").read_text()[-2000:]
            yield Service(line.split()[3].rstrip(";"), process)
        finally:
            process.terminate()
    output = (folder / "log").read_text()
    assert "Unexpected error in" not in output, output[-4000:]
    assert "Traceback" not in output, output[-4000:]


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Start one service for all tests. Each test has its own tenant."""
    folder = tmp_path_factory.mktemp("service")
    subprocess.run([PENSTOCK, "init", "--workspace", str(folder / "lake")], check=True)
    yield from serve(folder)


@pytest.fixture
def tenant() -> UUID:
    return uuid4()


@pytest.fixture
def rest(service: Service, tenant: UUID) -> Iterator[httpx.Client]:
    """Return an API client of an admin, to prepare data and to check results."""
    with service.rest(tenant) as client:
        yield client


@pytest.fixture(scope="module")  # not session: while Playwright runs, this thread cannot have another event loop
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    executable = shutil.which("chromium")
    if executable is None:
        skip_untested("no page was opened", "Chromium is not installed (apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield browser
        browser.close()


class PageMonitor:
    """Records errors, failed requests and unexpected dialogs of all pages of a browser context."""

    def __init__(self, context: BrowserContext, address: str) -> None:
        self._address = address
        self.seen: list[str] = []
        self.expected: list[str] = []  # parts of messages that a test provokes on purpose
        context.on("console", lambda message: self._record(message.type in ("error", "warning"), message.text))
        context.on("weberror", lambda error: self._record(True, str(error.error)))
        context.on("request", lambda request: self._record(self._is_foreign(request.url), f"foreign: {request.url}"))
        context.on(
            "response", lambda response: self._record(response.status >= 400, f"{response.status}: {response.url}")
        )
        context.on("requestfailed", lambda request: self._record(_is_failure(request), f"failed: {request.url}"))
        context.on("dialog", self._handle_dialog)

    def assert_no_errors(self) -> None:
        unexpected = [message for message in self.seen if not any(part in message for part in self.expected)]
        assert not unexpected, unexpected

    def _handle_dialog(self, dialog: Dialog) -> None:
        """Accept and record an unexpected dialog. A test that provokes a dialog handles it itself."""
        if dialog.type not in self.expected:
            self.seen.append(f"dialog: {dialog.type} {dialog.message}")
            dialog.accept()

    def _record(self, is_error: bool, text: str) -> None:
        if is_error:
            self.seen.append(text)

    def _is_foreign(self, url: str) -> bool:
        return not url.startswith((self._address, self._address.replace("http", "ws", 1), "data:", "blob:"))


def _is_failure(request: Any) -> bool:
    return "ERR_ABORTED" not in (request.failure or "")  # leaving a page aborts its requests


Visit = Callable[..., Page]


@pytest.fixture
def visit(service: Service, tenant: UUID, chromium: Browser) -> Iterator[Visit]:
    """Open a page as a user: `visit("/schemas", Role.VIEWER, width=NARROW, dark=True)`.

    After the test, no page may have logged an error, sent a request that failed or went to another host, or been wider
    than the screen.
    """
    opened: list[tuple[BrowserContext, PageMonitor, Page]] = []

    def open_(path: str = "/", role: Role = Role.ADMIN, *, width: int = WIDE, dark: bool = False, user: str = "ada",
              expect: tuple[str, ...] = (), sent: str | None = None, time_zone: str = "UTC") -> Page:  # fmt: skip
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", timezone_id=time_zone
        )
        context.add_init_script(WIDTH)
        monitor = PageMonitor(context, service.address)
        monitor.expected.extend(expect)
        page = context.new_page()
        page.set_default_timeout(TIMEOUT_MILLISECONDS)
        opened.append((context, monitor, page))
        page.goto(f"{service.address}/ui{path}")
        page.get_by_label("Token").fill(sent or token(tenant, role, user))
        page.get_by_role("button", name="Sign in").click()
        page.get_by_text(f"{user} · {role.name.lower()}").wait_for(state="attached")
        page.get_by_role("heading", level=1).first.wait_for()
        return page

    yield open_
    for context, monitor, page in opened:
        if not page.is_closed():
            page.wait_for_load_state()
            page.wait_for_timeout(2.5 * CHECK_MILLISECONDS)
        context.close()
        monitor.assert_no_errors()
