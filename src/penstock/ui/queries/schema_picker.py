"""The schema that rows promise to fit: chosen among those that new queries may use, or inferred from the SQL and made."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from nicegui import ui

from penstock.core.registry import gts
from penstock.core.caller import Role
from penstock.core.registry.lifecycle import State, may_be_referenced
from penstock.ui import formatting as shown
from penstock.ui.api_client import Problem, part, quoted
from penstock.ui.layout import Visit, answered, named, once, say, told
from penstock.ui.data_table import Column, grid

MOST = 50  # to choose from at once; who looks for others types a part of the name
_USABLE = (
    f"type_id eq {quoted(gts.QUERY_RETURNS)} and state in ({', '.join(map(quoted, filter(may_be_referenced, State)))})"
)
_FIELDS = (
    Column("name", "Field"),
    Column("type", "Type"),
    Column("array", "List", lambda is_list: "yes" if is_list else "no"),
    Column("optional", "Optional", lambda optional: "yes" if optional else "no"),
)

Statement = Callable[
    [], dict[str, Any] | None
]  # the SQL and its values, as the API takes them; None: something is wrong


class Promise:
    """Which schema it is. `id` is None while none is chosen."""

    def __init__(self, visit: Visit, statement: Statement, on_change: Callable[[], Awaitable[None]]) -> None:
        self._visit, self._statement = visit, statement
        self._called: Callable[[], str] = lambda: ""
        self._found: Mapping[str, str] = {}  # names by id, as they were offered last
        self._kept: dict[str, str] = {}  # the one that is chosen stays among them, whatever is looked for
        with ui.row().classes("w-full items-start gap-2 flex-wrap"):
            self._select = ui.select({}, label="Schema that the rows must fit", with_input=True, clearable=True)
            self._select.props("outlined dense options-dense hide-bottom-space input-debounce=300")
            self._select.classes("flex-1 min-w-56 max-w-md")
            self._select.on("input-value", lambda event: told(self.look)(str(event.args or "")))
            self._select.on_value_change(lambda: self._chosen(on_change))
            if visit.may(Role.DEVELOPER):
                ui.button("Infer a schema", icon="auto_fix_high", on_click=once(self._infer)).props("flat no-caps")

    @property
    def id(self) -> str | None:
        found: str | None = self._select.value
        return found

    @property
    def name(self) -> str:
        return self._kept.get(self.id or "", "")

    def name_after(self, called: Callable[[], str]) -> None:
        """What a schema is called that is made here, unless somebody says otherwise."""
        self._called = called

    def complain(self, sentence: str) -> ui.element:
        self._select.error = sentence
        return self._select

    def forgive(self) -> None:
        self._select.error = None

    async def look(self, words: str = "") -> None:
        """Offer schemas by a part of their name."""
        answer = await self._visit.api.get(
            "/gts",
            filter=_USABLE,
            search=quoted_phrase(words),
            orderby="name",
            top=MOST,
            select="id,name",
        )
        if not self._select.is_deleted:
            self._offer({each["id"]: each["name"] for each in answer["value"]})

    async def take(self, id: str) -> None:
        """Choose the one that a query has already, in whichever state it is by now."""
        try:
            found = await self._visit.api.get(f"/gts/{part(id)}")
        except Problem as problem:
            if problem.status != 404:
                raise
            found = {"id": id, "name": "a schema that is gone", "state": ""}
        usable = found["state"] == State.ACTIVE
        self._choose(id, found["name"] if usable else f"{found['name']} ({found['state'].lower() or 'not there'})")

    def _choose(self, id: str, name: str) -> None:
        self._kept = {id: name}
        self._offer(self._found)
        self._select.value = id

    async def _chosen(self, on_change: Callable[[], Awaitable[None]]) -> None:
        self._select.error = None
        self._kept = {self.id: {**self._found, **self._kept}[self.id]} if self.id else {}
        await on_change()

    def _offer(self, found: Mapping[str, str]) -> None:
        self._found = found
        self._select.set_options({**found, **self._kept}, value=self.id)

    async def _infer(self) -> None:
        statement = self._statement()
        if statement is None:
            return
        name = self._called() or f"Query of {shown.when(datetime.now(UTC).isoformat())}"
        try:
            proposal = await self._visit.api.post("/gts/infer", {**statement, "name": name})
        except Problem as problem:
            if problem.status == 401:
                raise
            self.complain(problem.sentence)
            return
        made = await propose(proposal, lambda asked: self._visit.api.post("/gts", asked))
        if made:
            self._choose(made["id"], made["name"])
            say(f"The schema {made['name']} is there, with the id {made['id']}.")


async def propose(
    proposal: Mapping[str, Any], make: Callable[[dict[str, Any]], Awaitable[Any]]
) -> Mapping[str, Any] | None:
    """Show what was inferred, and make it if that is wanted."""
    title = "A schema of these rows"
    with named(ui.dialog(), title) as dialog, ui.card().classes("w-full max-w-lg"):
        ui.label(title).classes("text-lg").props('role=heading aria-level="2"')
        name = (
            ui.input("Name of the schema", value=proposal["name"]).props("outlined dense autofocus").classes("w-full")
        )
        with ui.column().classes("w-full overflow-auto").style("max-height: 50vh"):
            grid(_FIELDS, proposal["fields"], name="Inferred fields")

        async def create() -> None:
            try:
                dialog.submit(await make({**proposal, "name": name.value.strip()}))
            except Problem as problem:
                if problem.status == 401:
                    raise
                name.error = problem.sentence

        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=lambda: dialog.submit(None)).props("flat no-caps")
            ui.button("Create schema", on_click=once(create)).props("unelevated no-caps")
    made: Mapping[str, Any] | None = await answered(dialog)
    return made


def quoted_phrase(words: str) -> str | None:
    """What was typed as one phrase of a search; a quote cannot be part of one."""
    plain = words.replace('"', " ").strip()
    return f'"{plain}"' if plain else None
