"""Page sessions: the user of an open page, the role of the user, and an API client with the user's token."""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from nicegui import Client, app, ui

from penstock.core.caller import ROLES, Role
from penstock.ui.api_client import ApiClient

_TOKEN_KEY = "token"


@dataclass(frozen=True)
class UiContext:
    """The service that the pages belong to."""

    application: Any  # ASGI
    dev: bool  # development mode: no token is needed


@dataclass(frozen=True)
class PageSession:
    """One user who has one page open."""

    api: ApiClient
    name: str
    role: Role
    tenant: str
    version: str  # of the service

    def has_role(self, role: Role) -> bool:
        """Return whether the user's role includes this role."""
        return self.role >= role


_context: list[UiContext] = []  # NiceGUI has one application per process, so there is one context
_clients: WeakKeyDictionary[Client, ApiClient] = WeakKeyDictionary()  # API clients of the open pages


def configure(context: UiContext) -> None:
    """Set the service that the pages of this process use."""
    _context[:] = [context]


def ui_context() -> UiContext:
    """Return the service that the pages of this process use."""
    return _context[0]


async def open_session(token: str | None) -> PageSession:
    """Create the API client of the current page and load its user.

    Raises:
        ApiError: The service rejected the token, or is not available.
    """
    api = _clients[ui.context.client] = ApiClient(ui_context().application, token)
    ui.context.client.on_delete(api.close)
    me = await api.get("/me")
    return PageSession(api, me["name"], ROLES[me["role"]], me["tenant"], me["version"])


def stored_token() -> str | None:
    """Return the token of this browser tab."""
    token: str | None = app.storage.tab.get(_TOKEN_KEY)
    return token


def store_token(token: str) -> None:
    """Keep a token for this browser tab."""
    app.storage.tab[_TOKEN_KEY] = token


def forget_token() -> None:
    """Remove the token of this browser tab."""
    app.storage.tab.pop(_TOKEN_KEY, None)


def replace_token(token: str) -> None:
    """Keep a new token for this browser tab and use it in the API client of the current page."""
    store_token(token)
    _clients[ui.context.client].set_token(token)
