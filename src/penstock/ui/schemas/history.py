"""The versions of a schema: who made which when and why, and how any two differ."""

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from penstock.ui import formatting as shown
from penstock.ui import lifecycle_badges as states
from penstock.ui.api_client import Api
from penstock.ui.layout import subheading, told
from penstock.ui.data_table import Column, grid
from penstock.ui.schemas import diff_text as changes

TOP = 50
VERSIONS = (
    Column("version", "Version"),
    Column("change", "Change"),
    Column("author", "By"),
    Column("changed_at", "When", shown.when),
    Column("state", "State", states.called),
    Column("reason", "Reason", lambda text: text or ""),
)


async def history(api: Api, at: str) -> None:
    await _History(api, at).show()


class _History:
    def __init__(self, api: Api, at: str) -> None:
        self._api, self._at = api, at
        self._known: dict[int, Mapping[str, Any]] = {}  # the newest first
        self._table = grid(VERSIONS, (), name="Versions")
        self._older = ui.button("Older versions", on_click=told(self._more)).props("flat no-caps")
        subheading("What changed")
        with ui.row().classes("items-center gap-3"):
            self._from, self._to = (ui.select({}, label=label) for label in ("From version", "To version"))
            for each in (self._from, self._to):
                each.props("outlined dense").classes("w-40")
        self._difference = ui.card().classes("w-full").props("flat bordered aria-live=polite")

    async def show(self) -> None:
        await self._more()
        newest = next(iter(self._known))
        self._from.value, self._to.value = max(newest - 1, 1), newest
        await self._compare()
        for each in (self._from, self._to):
            each.on_value_change(told(self._compare))

    async def _more(self) -> None:
        before = min(self._known, default=None)
        answer = await self._api.get(f"{self._at}/versions", top=TOP, before=before)
        self._known |= {each["version"]: each for each in answer["value"]}
        self._table.refill(list(self._known.values()))
        self._older.set_visibility(min(self._known) > 1)
        for each in (self._from, self._to):
            each.set_options({number: _label(found) for number, found in self._known.items()})

    async def _compare(self) -> None:
        first, second = self._from.value, self._to.value
        found = await self._api.get(f"{self._at}/diff", **{"from": first, "to": second})
        old, new = self._known[first], self._known[second]
        lines = changes.member_lines(old, new) + changes.field_lines(found["fields"], found["breaking"])
        self._difference.clear()
        with self._difference:
            only = f"Version {first} is the only one so far." if len(self._known) == 1 else "They say the same."
            changes.listed(lines, only)


def _label(version: Mapping[str, Any]) -> str:
    return f"{version['version']} · {version['change']}"
