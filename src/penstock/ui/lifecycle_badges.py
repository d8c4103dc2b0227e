"""The states of a schema: how each is shown, which are looked for, and which may follow for whom."""

from collections.abc import Awaitable, Callable, Collection

from nicegui import ui

from penstock.core.caller import Role
from penstock.core.registry.lifecycle import TRANSITIONS, State
from penstock.ui.layout import answered, named

SEARCH = "Search names and descriptions"
USUAL = frozenset(State) - {State.ARCHIVED}  # what a list shows until somebody asks for others
_LOOKS = {
    State.DRAFT: ("grey-8", "edit_note"),
    State.ACTIVE: ("positive", "check_circle"),
    State.DEPRECATED: ("accent", "schedule"),
    State.ARCHIVED: ("grey-8", "inventory_2"),
}
_ON, _OFF = "unelevated icon=check color=primary aria-pressed=true", "outline aria-pressed=false"


def steps(state: State, role: Role) -> list[tuple[State, str]]:
    """The states that this role may take it to, each with its verb."""
    return [(to, each.verb) for (start, to), each in TRANSITIONS.items() if start is state and role >= each.role]


def called(state: str) -> str:
    return state.capitalize()


def badge(state: State) -> None:
    colour, icon = _LOOKS[state]
    with ui.badge(color=colour).classes("px-2 py-1 text-sm gap-1"):
        ui.icon(icon).props("aria-hidden=true")
        ui.label(called(state))


def read(names: str | None) -> frozenset[State]:
    """The states that an address names, which may be none; without a word of it, the usual ones."""
    return USUAL if names is None else frozenset(state for state in State if state in names.split(","))


def chips(begun: Collection[State], on_change: Callable[[Collection[State]], Awaitable[None]]) -> None:
    """A switch for each state, on for those that it begins with."""
    chosen = set(begun)

    async def switch(state: State, chip: ui.button) -> None:
        chosen.symmetric_difference_update({state})
        _dress(chip, state in chosen)
        await on_change(frozenset(chosen))

    with ui.row().classes("gap-2").props('role=group aria-label="States"'):
        for state in State:
            chip = ui.button(called(state)).props("rounded dense no-caps").classes("px-3")
            chip.on_click(lambda state=state, chip=chip: switch(state, chip))
            _dress(chip, state in chosen)


async def reason_for(verb: str, name: str) -> str | None:
    """Ask before a step, and why it is taken: text that may be empty, or None if it is not taken."""
    question = f"{verb.capitalize()} {name}?"
    with named(ui.dialog(), question) as dialog, ui.card().classes("w-full max-w-md"):
        ui.label(question).classes("text-lg break-anywhere")
        reason = ui.input("Reason (optional)").props("outlined dense autofocus").classes("w-full")

        def step() -> None:
            dialog.submit((reason.value or "").strip())

        reason.on("keydown.enter", step)
        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=lambda: dialog.submit(None)).props("flat no-caps")
            ui.button(verb.capitalize(), on_click=step).props("unelevated no-caps")
    found: str | None = await answered(dialog)
    return found


def _dress(chip: ui.button, is_on: bool) -> None:
    chip.props(remove="unelevated outline icon color").props(_ON if is_on else _OFF)
