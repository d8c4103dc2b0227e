"""Lifecycle states: badges, a filter by state, and the dialog for a transition."""

from collections.abc import Awaitable, Callable, Collection

from nicegui import ui

from penstock.core.caller import Role
from penstock.core.registry.lifecycle import TRANSITIONS, LifecycleState
from penstock.ui.dialogs import dialog_result
from penstock.ui.elements import with_label

SEARCH_LABEL = "Search names and descriptions"
DEFAULT_STATES = frozenset(LifecycleState) - {LifecycleState.ARCHIVED}  # the states that a list shows by default
_STATE_STYLES = {
    LifecycleState.DRAFT: ("grey-8", "edit_note"),
    LifecycleState.ACTIVE: ("positive", "check_circle"),
    LifecycleState.DEPRECATED: ("accent", "schedule"),
    LifecycleState.ARCHIVED: ("grey-8", "inventory_2"),
}
_ON_PROPS, _OFF_PROPS = "unelevated icon=check color=primary aria-pressed=true", "outline aria-pressed=false"


def allowed_transitions(state: LifecycleState, role: Role) -> list[tuple[LifecycleState, str]]:
    """Return the states that a role may move an entry to, each with the verb of the transition."""
    return [
        (target, transition.verb)
        for (start, target), transition in TRANSITIONS.items()
        if start is state and role >= transition.role
    ]


def transition_roles(state: LifecycleState) -> dict[str, Role]:
    """Return the verbs of the transitions from a state, each with the lowest role that may perform it."""
    return {transition.verb: transition.role for (start, _), transition in TRANSITIONS.items() if start is state}


def state_label(state: str) -> str:
    """Return the label of a state."""
    return state.capitalize()


def show_badge(state: LifecycleState) -> None:
    """Show a state as a badge with an icon."""
    colour, icon = _STATE_STYLES[state]
    with ui.badge(color=colour).classes("px-2 py-1 text-sm gap-1"):
        ui.icon(icon).props("aria-hidden=true")
        ui.label(state_label(state))


def parse_states(names: str | None) -> frozenset[LifecycleState]:
    """Parse the states of a URL, which may be none. Without the parameter, return the default states."""
    return (
        DEFAULT_STATES if names is None else frozenset(state for state in LifecycleState if state in names.split(","))
    )


def show_state_filter(
    selected: Collection[LifecycleState], on_change: Callable[[Collection[LifecycleState]], Awaitable[None]]
) -> None:
    """Show a switch for each state."""
    chosen = set(selected)

    async def switch(state: LifecycleState, chip: ui.button) -> None:
        chosen.symmetric_difference_update({state})
        _set_switch(chip, state in chosen)
        await on_change(frozenset(chosen))

    with ui.row().classes("gap-2").props('role=group aria-label="States"'):
        for state in LifecycleState:
            chip = ui.button(state_label(state)).props("rounded dense no-caps").classes("px-3")
            chip.on_click(lambda state=state, chip=chip: switch(state, chip))
            _set_switch(chip, state in chosen)


async def ask_reason(verb: str, name: str) -> str | None:
    """Ask the user to confirm a transition and to give a reason.

    Returns:
        The reason, which may be empty, or None if the user cancelled.
    """
    question = f"{verb.capitalize()} {name}?"
    with with_label(ui.dialog(), question) as dialog, ui.card().classes("w-full max-w-md"):
        ui.label(question).classes("text-lg break-anywhere")
        reason = ui.input("Reason (optional)").props("outlined dense autofocus").classes("w-full")

        def submit() -> None:
            dialog.submit((reason.value or "").strip())

        reason.on("keydown.enter", submit)
        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=lambda: dialog.submit(None)).props("flat no-caps")
            ui.button(verb.capitalize(), on_click=submit).props("unelevated no-caps")
    result: str | None = await dialog_result(dialog)
    return result


def _set_switch(chip: ui.button, is_on: bool) -> None:
    chip.props(remove="unelevated outline icon color").props(_ON_PROPS if is_on else _OFF_PROPS)
