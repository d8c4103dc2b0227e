"""What every page has: the name on top, the ways to other pages, who is here, and a place for what went wrong."""

import inspect
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from nicegui import Client, app, ui

from penstock.core.caller import ROLES, Role
from penstock.ui import formatting as shown
from penstock.ui.api_client import Api, Problem

P = ParamSpec("P")
E = TypeVar("E", bound=ui.element)

SECTIONS = {
    "/": ("Home", "home"),
    "/schemas": ("Schemas", "rule"),
    "/datasets": ("Datasets", "table_chart"),
    "/pipelines": ("Pipelines", "account_tree"),
    "/queries": ("Queries", "manage_search"),
}
_TOKEN, _DARK = "token", "dark"
_PATIENCE = 30.0  # seconds for a browser to answer
_BUG = "Something went wrong in the page itself. It is in the service's log; try again, or reload."
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Door:
    """How pages reach the service."""

    application: Any  # ASGI
    dev: bool  # nobody needs a token


@dataclass(frozen=True)
class Visit:
    """One person looking at one page."""

    api: Api
    name: str
    role: Role
    tenant: str
    version: str  # of the service

    def may(self, role: Role) -> bool:
        return self.role >= role


_door: list[Door] = []  # NiceGUI is one for a process, and so is this
_apis: WeakKeyDictionary[Client, Api] = WeakKeyDictionary()  # of those who are there


def open_to(door: Door) -> None:
    _door[:] = [door]


def page(
    path: str, title: str
) -> Callable[[Callable[Concatenate[Visit, P], Awaitable[None]]], Callable[P, Awaitable[None]]]:
    """A page at this path. Its function fills the frame, once it is known who is there.

    What the service says against it takes the place of what could not be shown.
    """

    def framed(fill: Callable[Concatenate[Visit, P], Awaitable[None]]) -> Callable[P, Awaitable[None]]:
        @wraps(fill)
        async def shown(*args: P.args, **options: P.kwargs) -> None:
            door = _door[0]
            dark = _dressed(title)
            with _Frame(path) as frame:
                await ui.context.client.connected()
                if not ui.context.client.has_socket_connection:  # gone again
                    return
                dark.value = app.storage.tab.get(_DARK)
                token = app.storage.tab.get(_TOKEN)
                if not (door.dev or token):
                    _ask_for_token()
                    return
                api = _apis[ui.context.client] = Api(door.application, token)
                ui.context.client.on_delete(api.close)
                try:
                    visit = await _visit(api)
                    _tell_who(frame, visit, dark, dev=door.dev)
                    with frame.content:
                        await fill(visit, *args, **options)
                except Problem as problem:
                    if problem.status == 401:
                        app.storage.tab.pop(_TOKEN, None)
                        _ask_for_token(problem.sentence)
                    else:
                        trouble(problem.sentence, path)
                except Exception:
                    _log.exception("a bug in the page %s", path)
                    trouble(_BUG, path)

        asked = inspect.signature(fill)
        shown.__signature__ = asked.replace(parameters=list(asked.parameters.values())[1:])  # type: ignore[attr-defined]
        ui.page(path)(shown)
        return shown

    return framed


def nowhere() -> None:
    """What is at an address without a page."""
    _dressed("Not found")
    with _Frame("/"):
        trouble("There is no page at this address.", "/")


def told(act: Callable[P, Awaitable[Any]]) -> Callable[P, Awaitable[None]]:
    """An action of a page: what the service says against it is shown, and the page stays as it is."""

    @wraps(act)
    async def acting(*args: P.args, **options: P.kwargs) -> None:
        try:
            await act(*args, **options)
        except Problem as problem:
            if problem.status == 401:
                await _sign_in_again(problem.sentence)
            else:
                say(problem.sentence, bad=True)
        except Exception:
            _log.exception("a bug in a page's action")
            say(_BUG, bad=True)

    return acting


def once(act: Callable[P, Awaitable[Any]]) -> Callable[P, Awaitable[None]]:
    """As `told`, for what must not be done twice by a second click: while it is under way, clicks are not heard."""
    acting, busy = told(act), False

    @wraps(act)
    async def acting_once(*args: P.args, **options: P.kwargs) -> None:
        nonlocal busy
        if not busy:
            busy = True
            try:
                await acting(*args, **options)
            finally:
                busy = False

    return acting_once


def say(sentence: str, *, bad: bool = False) -> None:
    """A word at the edge of the page, also for those who hear it. A bad one stays until it is closed."""
    ui.notify(
        shown.sentence(sentence),
        type="negative" if bad else "positive",
        multi_line=True,
        close_button="Close" if bad else False,
        timeout=0 if bad else 5000,
    )


def named(element: E, name: str) -> E:
    """The same element with a name for those who cannot see it. Any text will do, which is not so in `props("…")`."""
    element.props["aria-label"] = name
    return element


def heading(text: str, *, above: tuple[str, str] | None = None) -> ui.row:
    """The page's own heading, and a row beside it for what can be done. `above`: the name and the path of the list."""
    ui.page_title(_title(text))
    with ui.column().classes("w-full gap-0"):
        if above:
            name, path = above
            with ui.element("nav").props('aria-label="Where this is"'):
                ui.link(f"‹ {name}", path).classes("text-sm")
        with ui.row().classes("w-full items-center gap-2 justify-between"):
            ui.label(text).classes("text-2xl font-medium break-anywhere").props('role=heading aria-level="1"')
            return ui.row().classes("items-center gap-2")


def subheading(text: str) -> ui.label:
    return ui.label(text).classes("text-lg font-medium").props('role=heading aria-level="2"')


def trouble(sentence: str, path: str | None = None) -> None:
    """In place of what could not be shown. `path`: of a page without a heading, which would lead back to its section."""
    with ui.card().classes("w-full").props("role=alert flat bordered"):
        ui.label("That did not work").classes("text-xl").props(f'role=heading aria-level="{1 if path else 2}"')
        ui.label(shown.sentence(sentence)).classes("break-anywhere")
        if path:
            section = _section(path)
            name, _ = SECTIONS[section]
            ui.link(f"‹ {name}", section)


def empty(sentence: str, label: str | None = None, to: str | Callable[[], Any] | None = None) -> None:
    """In place of a list with nothing in it: what to do. `to`: a path, or what a click does."""
    with ui.card().classes("w-full items-center p-8").props("flat bordered"):
        ui.label(sentence).classes("text-center")
        if label and to is not None:
            ui.button(label, on_click=to if callable(to) else lambda: ui.navigate.to(to)).props("unelevated no-caps")


async def confirmed(question: str, yes: str, *, no: str = "Cancel", danger: bool = False) -> bool:
    """Ask before what cannot be taken back."""
    with named(ui.dialog(), question) as dialog, ui.card():
        ui.label(question).classes("break-anywhere")
        with ui.row().classes("w-full justify-end"):
            ui.button(no, on_click=lambda: dialog.submit(False)).props("flat no-caps")
            ui.button(yes, on_click=lambda: dialog.submit(True)).props(
                f"unelevated no-caps {'color=negative' if danger else ''}"
            )
    return bool(await answered(dialog))


async def answered(dialog: ui.dialog, then: Callable[[], None] = lambda: None) -> Any:
    """What somebody says to a dialog, which is gone then; None for nothing, or if they are gone themselves."""

    def hidden() -> None:
        if not dialog.is_deleted:
            dialog.delete()  # by now the focus is back where it was
            then()

    dialog.on("hide", hidden)
    return await dialog


def unsaved(is_unsaved: bool) -> None:
    """From now on the browser asks before this page is left, or does so no more."""
    ui.run_javascript(f"window.penstockUnsaved = {'true' if is_unsaved else 'false'}")


async def leave(path: str | None = None) -> None:
    """Go to another page, or load this one anew, whatever is written here: the browser does not ask.

    It must know before it leaves. What is not awaited can come after the way to the other page.
    """
    await ui.run_javascript("window.penstockUnsaved = false", timeout=_PATIENCE)
    ui.navigate.to(path) if path else ui.navigate.reload()


_HEAD = """
<script>
(() => {
  let lost = false, back;  // the connection, and perhaps the page's other half in the service with it
  const watch = () => {
    if (!window.socket) return setTimeout(watch, 200);
    window.socket.on("disconnect", () => { clearTimeout(back); lost = true; });
    window.socket.on("connect", () => { back = setTimeout(() => { lost = false; }, 3000); });
  };
  const tell = () => {
    const told = document.createElement("div");
    told.setAttribute("role", "alert");
    told.className = "penstock-forgotten";
    told.textContent = "The service has forgotten this page, and nothing here can be saved any more. "
      + "Copy what you have written, then reload.";
    document.body.append(told);
  };
  window.addEventListener("beforeunload", event => {
    if (!window.penstockUnsaved) return;
    event.preventDefault();
    if (lost) setTimeout(tell, 100);  // for who stays
  });
  watch();
})();
</script>
<style>
:root { --nicegui-default-padding: 1rem; }
body { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
.break-anywhere { overflow-wrap: anywhere; }
.body--light a:not(.q-btn):not(.plain) { color: #14507a; }
.body--dark a:not(.q-btn):not(.plain) { color: #8cc5ee; }
.body--dark .q-field__label, .body--dark .q-field__messages { color: #c3ccd3; }
.body--dark :is(.q-btn--flat, .q-btn--outline, .q-field, .q-icon, .text-negative) {
  --q-primary: #8cc5ee; --q-negative: #f2a9a3; --q-positive: #8fd3a4; --q-accent: #efb488;
}
.body--dark .q-field--error .q-field__messages { color: #f2a9a3; }
.q-notification .q-btn { color: #fff; text-transform: none; }
.penstock-forgotten { position: fixed; inset: auto 0 0 0; z-index: 9999; padding: 1rem; background: #b3261e; color: #fff; }
.quiet { color: #55616b; }
.body--dark .quiet { color: #aab6bf; }
:focus-visible { outline: 2px solid #e08a3c; outline-offset: 2px; }
.q-btn.disabled { opacity: .35 !important; }
.q-uploader__subtitle { display: none; }
.q-table__container { max-width: 100%; }
.q-table td a { display: inline-block; max-width: min(28rem, 60vw); overflow: hidden; text-overflow: ellipsis; vertical-align: bottom; }
.penstock-long { background: none; border: 0; padding: 0; font: inherit; color: inherit; max-width: min(28rem, 60vw); overflow: hidden; text-overflow: ellipsis; white-space: nowrap; text-align: inherit;
  vertical-align: bottom; text-decoration: underline dotted; text-underline-offset: 2px; cursor: pointer; }
.q-table__middle {  /* a shadow at an edge beyond which there is more */
  --sheet: #fff; --shade: #0003;
  background:
    linear-gradient(to right, var(--sheet) 40%, transparent) left / 3rem 100% no-repeat local,
    linear-gradient(to left, var(--sheet) 40%, transparent) right / 3rem 100% no-repeat local,
    linear-gradient(to right, var(--shade), transparent) left / 1rem 100% no-repeat scroll,
    linear-gradient(to left, var(--shade), transparent) right / 1rem 100% no-repeat scroll;
}
.body--dark .q-table__middle { --sheet: #1d1d1d; --shade: #fff4; }
</style>
"""


def _dressed(title: str) -> ui.dark_mode:
    ui.page_title(_title(title))
    ui.colors(primary="#1d5d8c", secondary="#3b7a57", accent="#b0500f", positive="#2b6e3f", negative="#b3261e")
    ui.add_head_html(_HEAD)
    return ui.dark_mode(None)


def _title(text: str) -> str:
    return f"{text} · Penstock"


class _Frame:
    """The bar on top and the content below it, which is where elements go while it is entered."""

    def __init__(self, path: str) -> None:
        with ui.header().classes("items-center gap-1 px-3 py-1 no-wrap"):
            ui.link("Penstock", "/").classes("plain text-lg font-bold text-white no-underline mr-2")
            with ui.element("nav").classes("flex gap-1 max-md:hidden").props("aria-label=Sections"):
                for to, (name, icon) in SECTIONS.items():
                    _way(to, name, icon, path)
            ui.space()
            self.person = ui.row().classes("items-center gap-1 no-wrap")
            with (
                ui.button(icon="menu").props('flat round dense color=white aria-label="Sections"').classes("md:hidden"),
                ui.menu().props("role=menu") as self.menu,
            ):
                for to, (name, _) in SECTIONS.items():
                    ui.menu_item(name, lambda to=to: ui.navigate.to(to)).props("role=menuitem")
        with ui.column().classes("w-full max-w-6xl mx-auto gap-4") as self.content:
            ui.skip_link("Skip to content", target=self.content)

    def __enter__(self) -> "_Frame":
        self.content.__enter__()
        return self

    def __exit__(self, *trouble: Any) -> None:
        self.content.__exit__(*trouble)


def _way(to: str, name: str, icon: str, here: str) -> None:
    current = here == to or (to != "/" and _section(here) == to)
    link = ui.link(target=to).classes("plain text-white no-underline px-3 py-2 rounded flex items-center gap-1")
    link.props("aria-current=page").classes("bg-white/20") if current else link.classes("hover:bg-white/10")
    with link:
        ui.icon(icon).props("aria-hidden=true")
        ui.label(name)


def _section(path: str) -> str:
    first = f"/{path.split('/')[1]}"
    return "/pipelines" if first == "/runs" else first  # runs have no section of their own


async def _visit(api: Api) -> Visit:
    me = await api.get("/me")
    return Visit(api, me["name"], ROLES[me["role"]], me["tenant"], me["version"])


def _tell_who(frame: _Frame, visit: Visit, dark: ui.dark_mode, *, dev: bool) -> None:
    async def other_theme() -> None:
        dark.value = not await ui.run_javascript("document.body.classList.contains('body--dark')")
        app.storage.tab[_DARK] = dark.value

    who = f"{visit.name} · {visit.role.name.lower()}"
    with frame.menu, ui.item().classes("sm:hidden").props("role=none"):
        ui.label(who).classes("text-sm quiet break-anywhere self-center")
    with frame.person:
        ui.label(who).classes("text-sm max-sm:hidden")
        ui.button(icon="contrast", on_click=other_theme).props(
            'flat round dense color=white aria-label="Light or dark"'
        )
        if not dev:
            ui.button(icon="logout", on_click=_sign_out).props('flat round dense color=white aria-label="Sign out"')


def _ask_for_token(why: str = "") -> None:
    with ui.card().classes("w-full max-w-xl mx-auto p-6"):
        ui.label("Sign in").classes("text-xl").props('role=heading aria-level="1"')
        if why:
            ui.label(shown.sentence(why)).classes("text-negative break-anywhere").props("role=alert")
        else:
            ui.label("Paste a token.")

        def sign_in(token: str) -> None:
            app.storage.tab[_TOKEN] = token
            ui.navigate.reload()

        _token_form(sign_in)


async def _sign_in_again(why: str) -> None:
    """The token has expired in the middle of something, which must not be lost for it."""
    with named(ui.dialog().props("persistent"), "Sign in again") as dialog, ui.card().classes("w-full max-w-xl"):
        subheading("Sign in again")
        ui.label(f"{shown.sentence(why)} What you have written here stays.")
        _token_form(dialog.submit)
        ui.button("Later", on_click=lambda: dialog.submit(None)).props("flat no-caps")
    if token := await answered(dialog):
        app.storage.tab[_TOKEN] = token
        _apis[ui.context.client].speak_as(token)
        say("You are signed in; go on.")


def _token_form(use: Callable[[str], None]) -> None:
    given = ui.input("Token", password=True, password_toggle_button=True).classes("w-full").props("autofocus")
    ui.label("It stays in the service's memory, for this tab, until you sign out or for half a day after you close it.")
    ui.label("penstock token --role analytics.developer --user ada").classes("font-mono text-sm quiet")

    def sign_in() -> None:
        if text := re.sub(r"^bearer\s+", "", given.value.strip(), flags=re.IGNORECASE):  # as headers have it
            use(text)

    given.on("keydown.enter", sign_in)
    ui.button("Sign in", on_click=sign_in).props("unelevated no-caps")


def _sign_out() -> None:
    app.storage.tab.pop(_TOKEN, None)
    ui.navigate.reload()
