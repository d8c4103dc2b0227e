"""Dataset browser beside the SQL editor: a click inserts the name of a dataset or column at the cursor."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from penstock.ui import formatting
from penstock.ui.actions import show_errors
from penstock.ui.elements import with_label
from penstock.ui.queries import sql_text
from penstock.ui.session import PageSession

MAX_DATASETS = 50  # users search for others by name
_MAX_COLUMNS = 200  # per dataset
_EXPANSION_PROPS = 'label=Datasets dense header-class="font-medium px-1" :default-opened="innerWidth >= 1024"'
# The name is read from an attribute of the button, so it can be any text.
_INSERT_NAME = """event => {
  const view = getElement(%d).editor, at = view.state.selection.main.from;
  const space = /[\\w"]/.test(view.state.sliceDoc(Math.max(at - 1, 0), at)) ? " " : "";
  view.dispatch(view.state.replaceSelection(space + event.currentTarget.dataset.name));
  view.focus();
}"""
# CodeMirror completes names while the user types. Initially the cursor is at the end.
_COMPLETE_NAMES = """
(async () => {
  const view = await getElement(%d).editorPromise, {StateEffect, EditorState} = await import("nicegui-codemirror");
  const complete = context => {
    const word = context.matchBefore(/[\\w."]+/);
    if (!word && !context.explicit) return null;
    const names = JSON.parse(getHtmlElement(%d)?.dataset.names || "[]");
    return {from: word ? word.from : context.pos, options: names, validFor: /^[\\w."]*$/};
  };
  view.dispatch({
    selection: {anchor: view.state.doc.length},
    effects: StateEffect.appendConfig.of(EditorState.languageData.of(() => [{autocomplete: complete}])),
  });
})()
"""

Dataset = Mapping[str, Any]


def list_completions(datasets: Sequence[Dataset]) -> list[dict[str, str]]:
    """Return the names that the editor completes, each once."""
    names = {
        _quoted_name(dataset): {"label": _quoted_name(dataset), "detail": "dataset", "type": "class"}
        for dataset in datasets
    }
    for dataset in datasets:
        for column in dataset["schema"][:_MAX_COLUMNS]:
            label = sql_text.quote_identifier(column["name"])
            names.setdefault(
                label, {"label": label, "detail": formatting.format_type(column["type"]), "type": "property"}
            )
    return list(names.values())


async def show_browser(session: PageSession, editor: ui.codemirror) -> None:
    """Show a search for datasets. On narrow screens it is collapsed."""
    with ui.element("q-expansion-item").classes("w-full").props(_EXPANSION_PROPS):
        search_box = ui.input("Find a dataset").props("outlined dense clearable debounce=300").classes("w-full")
        results = ui.column().classes("w-full gap-0 overflow-y-auto no-wrap").style("max-height: 22rem")
    with_label(results.props("role=group aria-live=polite tabindex=0"), "Datasets and columns")
    names = ui.element("div").classes("hidden")
    ui.run_javascript(_COMPLETE_NAMES % (editor.id, names.id))

    async def search() -> None:
        words = (search_box.value or "").strip()
        response = await session.api.get(
            "/datasets",
            orderby="name",
            top=MAX_DATASETS,
            select="name,schema_name,table_name,schema",
            search=words or None,
            count=True,
        )
        if words != (search_box.value or "").strip() or results.is_deleted:
            return  # a newer search is running
        datasets = response["value"]
        names.props["data-names"] = json.dumps(list_completions(datasets))
        results.clear()
        with results:
            for dataset in datasets:
                _DatasetEntry(dataset, editor)
            if response["@odata.count"] > len(datasets):
                ui.label("There are more datasets. Type a part of the name to find others.").classes(
                    "text-sm quiet p-1"
                )
            if not datasets:
                message = "No datasets match." if words else "No datasets yet. Upload a file first."
                ui.label(message).classes("text-sm quiet p-1")

    search_box.on_value_change(show_errors(search))
    await search()


class _DatasetEntry:
    """A dataset in the browser. Its columns are shown when the user opens it."""

    def __init__(self, dataset: Dataset, editor: ui.codemirror) -> None:
        self._dataset, self._editor, self._open = dataset, editor, False
        with ui.row().classes("w-full items-center no-wrap gap-0"):
            self._more = ui.button(icon="expand_more", on_click=self._toggle).props("flat round dense size=sm")
            with_label(self._more.props("aria-expanded=false"), f"Columns of {dataset['name']}")
            _add_insert_button(_quoted_name(dataset), editor).classes("min-w-0 flex-1 font-mono")
        self._columns = ui.column().classes("w-full gap-0 pl-6")

    def _toggle(self) -> None:
        self._open = not self._open
        self._more.props(f"aria-expanded={'true' if self._open else 'false'}")
        self._more.icon = "expand_less" if self._open else "expand_more"
        self._columns.clear()
        if not self._open:
            return
        columns = self._dataset["schema"]
        with self._columns:
            for column in columns[:_MAX_COLUMNS]:
                with ui.row().classes("w-full items-center no-wrap gap-1 justify-between"):
                    _add_insert_button(sql_text.quote_identifier(column["name"]), self._editor).classes(
                        "min-w-0 font-mono"
                    )
                    ui.label(formatting.format_type(column["type"])).classes("text-xs quiet break-anywhere text-right")
            if len(columns) > _MAX_COLUMNS:
                ui.label(formatting.format_count(len(columns) - _MAX_COLUMNS, "more column")).classes("text-sm quiet")


def _add_insert_button(name: str, editor: ui.codemirror) -> ui.button:
    button = ui.button(name).props("flat dense no-caps align=left").classes("px-1 break-anywhere text-left text-sm")
    button.props["data-name"] = name
    with_label(button, f"Insert {name}").on("click", js_handler=_INSERT_NAME % editor.id)
    return button


def _quoted_name(dataset: Dataset) -> str:
    return sql_text.quote_path((dataset["schema_name"], dataset["table_name"]))
