"""Wrappers for the event handlers of pages: report errors, and ignore clicks while an action runs."""

import logging
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, ParamSpec

from penstock.ui.api_client import ApiError
from penstock.ui.elements import notify
from penstock.ui.sign_in import sign_in_again

P = ParamSpec("P")

INTERNAL_ERROR = "Internal error in this page. Try again or reload the page; details are in the service log"
_log = logging.getLogger(__name__)


def show_errors(action: Callable[P, Awaitable[Any]]) -> Callable[P, Awaitable[None]]:
    """Wrap an action so that its errors are shown as notices. The page stays unchanged."""

    @wraps(action)
    async def run(*args: P.args, **options: P.kwargs) -> None:
        try:
            await action(*args, **options)
        except ApiError as error:
            if error.status == 401:
                await sign_in_again(error.message)
            else:
                notify(error.message, is_error=True)
        except Exception:
            _log.exception("Unexpected error in a page action")
            notify(INTERNAL_ERROR, is_error=True)

    return run


def single_flight(action: Callable[P, Awaitable[Any]]) -> Callable[P, Awaitable[None]]:
    """Wrap an action as `show_errors` does, and ignore further calls while it runs.

    A double click therefore runs the action once.
    """
    run, is_running = show_errors(action), False

    @wraps(action)
    async def run_once(*args: P.args, **options: P.kwargs) -> None:
        nonlocal is_running
        if not is_running:
            is_running = True
            try:
                await run(*args, **options)
            finally:
                is_running = False

    return run_once
