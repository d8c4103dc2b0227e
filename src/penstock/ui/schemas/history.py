"""History tab of a schema: its versions and the differences between two of them."""

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from penstock.ui import lifecycle_badges
from penstock.ui.actions import show_errors
from penstock.ui.api_client import ApiClient
from penstock.ui.data_table import TableColumn, show_table
from penstock.ui.elements import subheading
from penstock.ui.schemas import diff_text
from penstock.ui.time_zone import format_timestamp

PAGE_VERSIONS = 50
VERSIONS = (
    TableColumn("version", "Version"),
    TableColumn("change", "Change"),
    TableColumn("author", "Author"),
    TableColumn("changed_at", "Time", format_timestamp),
    TableColumn("state", "State", lifecycle_badges.state_label),
    TableColumn("reason", "Reason", lambda text: text or ""),
)


async def show_history(api: ApiClient, path: str) -> None:
    """Show the history of the schema at a path of the API."""
    await _History(api, path).show()


class _History:
    def __init__(self, api: ApiClient, path: str) -> None:
        self._api, self._path = api, path
        self._versions: dict[int, Mapping[str, Any]] = {}  # by number, the newest first
        self._table = show_table(VERSIONS, (), name="Versions")
        self._older = ui.button("Older versions", on_click=show_errors(self._load_more)).props("flat no-caps")
        subheading("Changes")
        with ui.row().classes("items-center gap-3"):
            self._from, self._to = (ui.select({}, label=label) for label in ("From version", "To version"))
            for select in (self._from, self._to):
                select.props("outlined dense").classes("w-40")
        self._difference = ui.card().classes("w-full").props("flat bordered aria-live=polite")

    async def show(self) -> None:
        await self._load_more()
        newest = next(iter(self._versions))
        self._from.value, self._to.value = max(newest - 1, 1), newest
        await self._compare()
        for select in (self._from, self._to):
            select.on_value_change(show_errors(self._compare))

    async def _load_more(self) -> None:
        before = min(self._versions, default=None)
        response = await self._api.get(f"{self._path}/versions", top=PAGE_VERSIONS, before=before)
        self._versions |= {version["version"]: version for version in response["value"]}
        self._table.set_rows(list(self._versions.values()))
        self._older.set_visibility(min(self._versions) > 1)
        for select in (self._from, self._to):
            select.set_options({number: _label(version) for number, version in self._versions.items()})

    async def _compare(self) -> None:
        first, second = self._from.value, self._to.value
        diff = await self._api.get(f"{self._path}/diff", **{"from": first, "to": second})
        old, new = self._versions[first], self._versions[second]
        lines = diff_text.member_lines(old, new) + diff_text.field_lines(diff["fields"], diff["breaking"])
        self._difference.clear()
        with self._difference:
            empty_text = f"Version {first} is the only version." if len(self._versions) == 1 else "No differences."
            diff_text.show_lines(lines, empty_text)


def _label(version: Mapping[str, Any]) -> str:
    return f"{version['version']} · {version['change']}"
