"""Sign in with an access token, sign in again after the token expired, and sign out."""

import re
from collections.abc import Callable

from nicegui import ui

from penstock.ui import formatting
from penstock.ui.dialogs import dialog_result
from penstock.ui.elements import notify, subheading, with_label
from penstock.ui.session import forget_token, replace_token, store_token


def show_sign_in(error: str = "") -> None:
    """Show the sign-in form in place of the page.

    Args:
        error: Why the last token was rejected.
    """
    with ui.card().classes("w-full max-w-xl mx-auto p-6"):
        ui.label("Sign in").classes("text-xl").props('role=heading aria-level="1"')
        if error:
            ui.label(formatting.to_sentence(error)).classes("text-negative break-anywhere").props("role=alert")
        else:
            ui.label("Paste an access token.")

        def sign_in(token: str) -> None:
            store_token(token)
            ui.navigate.reload()

        _token_form(sign_in)


async def sign_in_again(error: str) -> None:
    """Ask for a new token in a dialog, so that the user's input on the page is kept."""
    with (
        with_label(ui.dialog().props("persistent"), "Sign in again") as dialog,
        ui.card().classes("w-full max-w-xl"),
    ):
        subheading("Sign in again")
        ui.label(f"{formatting.to_sentence(error)} Your input on this page is kept.")
        _token_form(dialog.submit)
        ui.button("Later", on_click=lambda: dialog.submit(None)).props("flat no-caps")
    if token := await dialog_result(dialog):
        replace_token(token)
        notify("Signed in. Repeat the last action")


def sign_out() -> None:
    """Forget the token of this browser tab."""
    forget_token()
    ui.navigate.reload()


def _token_form(on_submit: Callable[[str], None]) -> None:
    token = ui.input("Token", password=True, password_toggle_button=True).classes("w-full").props("autofocus")
    ui.label(
        "The service keeps the token in memory for this browser tab, until you sign out or for 12 hours after you "
        "close the tab."
    )
    ui.label("penstock token --role analytics.developer --user ada").classes("font-mono text-sm quiet")

    def submit() -> None:
        # A token that was copied from an Authorization header starts with "Bearer".
        if text := re.sub(r"^bearer\s+", "", token.value.strip(), flags=re.IGNORECASE):
            on_submit(text)

    token.on("keydown.enter", submit)
    ui.button("Sign in", on_click=submit).props("unelevated no-caps")
