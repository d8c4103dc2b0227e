"""A real service, a real Chromium, and people of one tenant with their roles in front of it."""

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
from playwright.sync_api import Browser, BrowserContext, Dialog, Page, sync_playwright

from conftest import not_tested
from penstock.core.caller import Role
from penstock.service.auth.tokens import mint

SECRET = "a secret of enough bytes, for the pages only"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
PENSTOCK = str(Path(sys.executable).with_name("penstock"))
HOUR, LEEWAY = timedelta(hours=1), timedelta(seconds=30)  # the service has patience with clocks
WIDE, NARROW = 1280, 390
LOOK = 150  # milliseconds
WIDTH = """
let wider = 0;  // for so many looks: what only moves past the edge is not meant
setInterval(() => {
  const {scrollWidth, clientWidth} = document.documentElement ?? {};  // none yet while a page begins
  wider = scrollWidth > clientWidth && location.pathname.startsWith("/ui") ? wider + 1 : 0;
  if (wider === 2) console.error(`${location.href} is ${scrollWidth - clientWidth} pixels wider than the screen`);
}, LOOK);
""".replace("LOOK", str(LOOK))


def token(tenant: UUID, role: Role = Role.ADMIN, user: str = "ada", *, seconds: float = 3_600) -> str:
    """It is taken for so many seconds: it has expired before, and clocks may differ a little."""
    begun = datetime.now(UTC) - HOUR
    ttl = HOUR + timedelta(seconds=seconds) - LEEWAY
    return mint(SECRET, tenant=tenant, user=user, roles=[role.wire], ttl=ttl, now=begun)


@dataclass(frozen=True)
class Service:
    address: str
    process: subprocess.Popen[str]

    def rest(self, tenant: UUID, role: Role = Role.ADMIN, user: str = "ada") -> httpx.Client:
        return httpx.Client(
            base_url=self.address, headers={"authorization": f"Bearer {token(tenant, role, user)}"}, timeout=60
        )


def serve(folder: Path, *args: str, command: Sequence[str] = (PENSTOCK,)) -> Iterator[Service]:
    """`penstock serve`, until it is not needed any more; in the words of `command`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "PYTEST_"))}
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            [*command, "serve", "--workspace", str(folder / "lake"), "--http-port", "0", "--no-flight", *args],
            cwd=folder,
            env={**kept, "PENSTOCK_DURABLE": "no", "PENSTOCK_JWT_SECRET": SECRET},
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
    told = (folder / "log").read_text()
    assert "a bug in" not in told, told[-4000:]
    assert "Traceback" not in told, told[-4000:]


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One for all tests: each has a tenant of its own."""
    folder = tmp_path_factory.mktemp("service")
    subprocess.run([PENSTOCK, "init", "--workspace", str(folder / "lake")], check=True)
    yield from serve(folder)


@pytest.fixture
def tenant() -> UUID:
    return uuid4()


@pytest.fixture
def rest(service: Service, tenant: UUID) -> Iterator[httpx.Client]:
    """The API as an admin of the test's tenant uses it: for what must be there before, and to see what came of it."""
    with service.rest(tenant) as client:
        yield client


@pytest.fixture(scope="module")  # not longer: while Playwright runs, nothing else can have an event loop in this thread
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = shutil.which("chromium")
    if found is None:
        not_tested("no page was opened", "Chromium is not installed (apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


class Watch:
    """What must not happen while a page is open, whatever is done with it."""

    def __init__(self, context: BrowserContext, address: str) -> None:
        self._address = address
        self.seen: list[str] = []
        self.expected: list[str] = []  # pieces of what a test provokes on purpose
        context.on("console", lambda message: self._note(message.type in ("error", "warning"), message.text))
        context.on("weberror", lambda error: self._note(True, str(error.error)))
        context.on("request", lambda request: self._note(self._is_foreign(request.url), f"foreign: {request.url}"))
        context.on("response", lambda answer: self._note(answer.status >= 400, f"{answer.status}: {answer.url}"))
        context.on("requestfailed", lambda request: self._note(_is_failure(request), f"failed: {request.url}"))
        context.on("dialog", self._answer)

    def assert_nothing(self) -> None:
        wrong = [each for each in self.seen if not any(piece in each for piece in self.expected)]
        assert not wrong, wrong

    def _answer(self, dialog: Dialog) -> None:
        """The browser asks something. A test that provokes it answers itself."""
        if dialog.type not in self.expected:
            self.seen.append(f"asked: {dialog.type} {dialog.message}")
            dialog.accept()

    def _note(self, is_wrong: bool, text: str) -> None:
        if is_wrong:
            self.seen.append(text)

    def _is_foreign(self, url: str) -> bool:
        return not url.startswith((self._address, self._address.replace("http", "ws", 1), "data:", "blob:"))


def _is_failure(request: Any) -> bool:
    return "ERR_ABORTED" not in (request.failure or "")  # a page that is left takes its requests along


Visit = Callable[..., Page]


@pytest.fixture
def visit(service: Service, tenant: UUID, chromium: Browser) -> Iterator[Visit]:
    """Opens a page as somebody: `visit("/schemas", Role.VIEWER, width=NARROW, dark=True)`.

    No error in the console, no request that fails or goes elsewhere, nothing that is wider than the screen.
    """
    opened: list[tuple[BrowserContext, Watch, Page]] = []

    def open_(path: str = "/", role: Role = Role.ADMIN, *, width: int = WIDE, dark: bool = False, user: str = "ada",
              expect: tuple[str, ...] = (), sent: str | None = None) -> Page:  # fmt: skip
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        context.add_init_script(WIDTH)
        watch = Watch(context, service.address)
        watch.expected.extend(expect)
        page = context.new_page()
        page.set_default_timeout(15_000)
        opened.append((context, watch, page))
        page.goto(f"{service.address}/ui{path}")
        page.get_by_label("Token").fill(sent or token(tenant, role, user))
        page.get_by_role("button", name="Sign in").click()
        page.get_by_text(f"{user} · {role.name.lower()}").wait_for(state="attached")
        page.get_by_role("heading", level=1).first.wait_for()
        return page

    yield open_
    for context, watch, page in opened:
        if not page.is_closed():
            page.wait_for_load_state()
            page.wait_for_timeout(2.5 * LOOK)
        context.close()
        watch.assert_nothing()
