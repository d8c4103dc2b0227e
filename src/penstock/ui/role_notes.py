"""Notes that name the role which an action needs, for users whose role is lower."""

from collections.abc import Mapping, Sequence

from nicegui import ui

from penstock.core.caller import Role
from penstock.ui.session import PageSession


def describe_missing_roles(role: Role, actions: Mapping[str, Role], entity: str) -> str:
    """Return one sentence for each role that the user lacks; an empty text if the user may do everything.

    Args:
        role: The user's role.
        actions: Verbs of the actions of a page, each with the lowest role that it needs.
        entity: The object of the verbs: `schemas`, `this schema`.
    """
    verbs = {needed: [verb for verb in actions if actions[verb] is needed] for needed in Role if needed > role}
    return " ".join(
        f"To {_join_verbs(names)} {entity}, you need the role {needed.claim}."
        for needed, names in verbs.items()
        if names
    )


def show_role_note(session: PageSession, actions: Mapping[str, Role], entity: str) -> None:
    """Show which roles the actions need that the page hides from the user."""
    if text := describe_missing_roles(session.role, actions, entity):
        ui.label(text).classes("text-sm quiet")


def _join_verbs(verbs: Sequence[str]) -> str:
    *others, last = verbs
    return f"{', '.join(others)} or {last}" if others else last
