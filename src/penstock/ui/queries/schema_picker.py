"""Schema picker: choose the result schema of a query, or infer one from the SQL and create it."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from nicegui import ui

from penstock.core.caller import Role
from penstock.core.registry import gts
from penstock.core.registry.lifecycle import LifecycleState, can_be_referenced
from penstock.ui import formatting
from penstock.ui.actions import show_errors, single_flight
from penstock.ui.api_client import ApiError, odata_string, path_segment
from penstock.ui.data_table import TableColumn, show_table
from penstock.ui.dialogs import dialog_result
from penstock.ui.elements import notify, with_label
from penstock.ui.role_notes import show_role_note
from penstock.ui.session import PageSession

MAX_SCHEMAS = 50  # in the select box; users search for others by name
_USABLE = f"type_id eq {odata_string(gts.QUERY_RETURNS)} and state in ({', '.join(map(odata_string, filter(can_be_referenced, LifecycleState)))})"
_FIELDS = (
    TableColumn("name", "Field"),
    TableColumn("type", "Type"),
    TableColumn("array", "List", lambda is_list: "yes" if is_list else "no"),
    TableColumn("optional", "Optional", lambda is_optional: "yes" if is_optional else "no"),
)

Statement = Callable[[], dict[str, Any] | None]  # returns SQL and parameters for the API, or None if a value is invalid


class SchemaPicker:
    """Select box for the result schema. `id` is None while no schema is chosen."""

    def __init__(self, session: PageSession, statement: Statement, on_change: Callable[[], Awaitable[None]]) -> None:
        self._session, self._statement = session, statement
        self._suggest_name: Callable[[], str] = lambda: ""
        self._matches: Mapping[str, str] = {}  # names by id, of the last search
        self._selected: dict[str, str] = {}  # the chosen schema stays in the options
        with ui.row().classes("w-full items-start gap-2 flex-wrap"):
            self._select = ui.select({}, label="Result schema", with_input=True, clearable=True)
            self._select.props("outlined dense options-dense hide-bottom-space input-debounce=300")
            self._select.classes("flex-1 min-w-56 max-w-md")
            self._select.on("input-value", lambda event: show_errors(self.search)(str(event.args or "")))
            self._select.on_value_change(lambda: self._on_select(on_change))
            if session.has_role(Role.DEVELOPER):
                ui.button("Infer schema", icon="auto_fix_high", on_click=single_flight(self._infer)).props(
                    "flat no-caps"
                )
            show_role_note(session, {"infer": Role.DEVELOPER}, "a schema")

    @property
    def id(self) -> str | None:
        id: str | None = self._select.value
        return id

    @property
    def name(self) -> str:
        return self._selected.get(self.id or "", "")

    def set_name_source(self, suggest_name: Callable[[], str]) -> None:
        """Set the function that suggests the name of a new schema."""
        self._suggest_name = suggest_name

    def set_error(self, message: str) -> ui.element:
        """Show an error at the select box, and return it."""
        self._select.error = message
        return self._select

    def clear_errors(self) -> None:
        """Remove the error."""
        self._select.error = None

    async def search(self, words: str = "") -> None:
        """Offer the schemas whose name contains a text."""
        response = await self._session.api.get(
            "/gts",
            filter=_USABLE,
            search=to_search_phrase(words),
            orderby="name",
            top=MAX_SCHEMAS,
            select="id,name",
        )
        if not self._select.is_deleted:
            self._offer({schema["id"]: schema["name"] for schema in response["value"]})

    async def select(self, id: str) -> None:
        """Choose the schema of an existing query, in any state."""
        try:
            schema = await self._session.api.get(f"/gts/{path_segment(id)}")
        except ApiError as error:
            if error.status != 404:
                raise
            schema = {"id": id, "name": "unknown schema", "state": ""}
        is_usable = schema["state"] == LifecycleState.ACTIVE
        self._choose(
            id, schema["name"] if is_usable else f"{schema['name']} ({schema['state'].lower() or 'not found'})"
        )

    def _choose(self, id: str, name: str) -> None:
        self._selected = {id: name}
        self._offer(self._matches)
        self._select.value = id

    async def _on_select(self, on_change: Callable[[], Awaitable[None]]) -> None:
        self._select.error = None
        self._selected = {self.id: {**self._matches, **self._selected}[self.id]} if self.id else {}
        await on_change()

    def _offer(self, matches: Mapping[str, str]) -> None:
        self._matches = matches
        self._select.set_options({**matches, **self._selected}, value=self.id)

    async def _infer(self) -> None:
        statement = self._statement()
        if statement is None:
            return
        name = self._suggest_name() or f"Query of {formatting.format_timestamp(datetime.now(UTC).isoformat())}"
        try:
            proposal = await self._session.api.post("/gts/infer", {**statement, "name": name})
        except ApiError as error:
            if error.status == 401:
                raise
            self.set_error(error.message)
            return
        schema = await show_proposal(proposal, lambda payload: self._session.api.post("/gts", payload))
        if schema:
            self._choose(schema["id"], schema["name"])
            notify(f"Schema {schema['name']} was created with the id {schema['id']}.")


async def show_proposal(
    proposal: Mapping[str, Any], create: Callable[[dict[str, Any]], Awaitable[Any]]
) -> Mapping[str, Any] | None:
    """Show an inferred schema, and create it if the user confirms.

    Returns:
        The schema, or None if the user cancelled.
    """
    title = "Inferred schema"
    with with_label(ui.dialog(), title) as dialog, ui.card().classes("w-full max-w-lg"):
        ui.label(title).classes("text-lg").props('role=heading aria-level="2"')
        name = ui.input("Schema name", value=proposal["name"]).props("outlined dense autofocus").classes("w-full")
        with ui.column().classes("w-full overflow-auto").style("max-height: 50vh"):
            show_table(_FIELDS, proposal["fields"], name="Inferred fields")

        async def submit() -> None:
            try:
                dialog.submit(await create({**proposal, "name": name.value.strip()}))
            except ApiError as error:
                if error.status == 401:
                    raise
                name.error = error.message

        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=lambda: dialog.submit(None)).props("flat no-caps")
            ui.button("Create schema", on_click=single_flight(submit)).props("unelevated no-caps")
    schema: Mapping[str, Any] | None = await dialog_result(dialog)
    return schema


def to_search_phrase(words: str) -> str | None:
    """Return a text as one phrase of a search. A phrase cannot contain quotes."""
    phrase = words.replace('"', " ").strip()
    return f'"{phrase}"' if phrase else None
