"""The tenant's datasets and their columns beside an editor of SQL: a click puts a name where the cursor is."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from penstock.ui import formatting as shown
from penstock.ui.layout import Visit, named, told
from penstock.ui.queries import sql_text as sql

MOST = 50  # datasets at once; who looks for others types a part of the name
_MOST_COLUMNS = 200  # of a dataset
_FOLDED = 'label=Datasets dense header-class="font-medium px-1" :default-opened="innerWidth >= 1024"'
# The name is an attribute of the button, and so it can be anything.
_PUT = """event => {
  const view = getElement(%d).editor, at = view.state.selection.main.from;
  const space = /[\\w"]/.test(view.state.sliceDoc(Math.max(at - 1, 0), at)) ? " " : "";
  view.dispatch(view.state.replaceSelection(space + event.currentTarget.dataset.name));
  view.focus();
}"""
# CodeMirror offers names while somebody types. Until they do, the cursor is at the end.
_OFFER = """
(async () => {
  const view = await getElement(%d).editorPromise, {StateEffect, EditorState} = await import("nicegui-codemirror");
  const offer = context => {
    const word = context.matchBefore(/[\\w."]+/);
    if (!word && !context.explicit) return null;
    const names = JSON.parse(getHtmlElement(%d)?.dataset.names || "[]");
    return {from: word ? word.from : context.pos, options: names, validFor: /^[\\w."]*$/};
  };
  view.dispatch({
    selection: {anchor: view.state.doc.length},
    effects: StateEffect.appendConfig.of(EditorState.languageData.of(() => [{autocomplete: offer}])),
  });
})()
"""

Dataset = Mapping[str, Any]


def offered(datasets: Sequence[Dataset]) -> list[dict[str, str]]:
    """The names that the editor completes, each once."""
    names = {_name(each): {"label": _name(each), "detail": "dataset", "type": "class"} for each in datasets}
    for dataset in datasets:
        for column in dataset["schema"][:_MOST_COLUMNS]:
            label = sql.identifier(column["name"])
            names.setdefault(label, {"label": label, "detail": shown.type_name(column["type"]), "type": "property"})
    return list(names.values())


async def palette(visit: Visit, editor: ui.codemirror) -> None:
    """Datasets by a part of their name, folded away where there is no room beside the editor."""
    with ui.element("q-expansion-item").classes("w-full").props(_FOLDED):
        sought = ui.input("Find a dataset").props("outlined dense clearable debounce=300").classes("w-full")
        found = ui.column().classes("w-full gap-0 overflow-y-auto no-wrap").style("max-height: 22rem")
    named(found.props("role=group aria-live=polite tabindex=0"), "Datasets and columns")
    names = ui.element("div").classes("hidden")
    ui.run_javascript(_OFFER % (editor.id, names.id))

    async def look() -> None:
        words = (sought.value or "").strip()
        answer = await visit.api.get(
            "/datasets", orderby="name", top=MOST, select="name,schema_name,table_name,schema", search=words or None
        )
        if words != (sought.value or "").strip() or found.is_deleted:
            return  # a later answer is on its way
        datasets = answer["value"]
        names.props["data-names"] = json.dumps(offered(datasets))
        found.clear()
        with found:
            for each in datasets:
                _Shown(each, editor)
            if "@odata.nextLink" in answer:
                ui.label("There are more: type a part of the name.").classes("text-sm quiet p-1")
            if not datasets:
                nothing = "No dataset has such a name." if words else "There is no dataset yet: upload a file first."
                ui.label(nothing).classes("text-sm quiet p-1")

    sought.on_value_change(told(look))
    await look()


class _Shown:
    """A dataset; its columns are there once they are asked for."""

    def __init__(self, dataset: Dataset, editor: ui.codemirror) -> None:
        self._dataset, self._editor, self._open = dataset, editor, False
        with ui.row().classes("w-full items-center no-wrap gap-0"):
            self._more = ui.button(icon="expand_more", on_click=self._turn).props("flat round dense size=sm")
            named(self._more.props("aria-expanded=false"), f"Columns of {dataset['name']}")
            _put(_name(dataset), editor).classes("min-w-0 flex-1 font-mono")
        self._columns = ui.column().classes("w-full gap-0 pl-6")

    def _turn(self) -> None:
        self._open = not self._open
        self._more.props(f"aria-expanded={'true' if self._open else 'false'}")
        self._more.icon = "expand_less" if self._open else "expand_more"
        self._columns.clear()
        if not self._open:
            return
        columns = self._dataset["schema"]
        with self._columns:
            for column in columns[:_MOST_COLUMNS]:
                with ui.row().classes("w-full items-center no-wrap gap-1 justify-between"):
                    _put(sql.identifier(column["name"]), self._editor).classes("min-w-0 font-mono")
                    ui.label(shown.type_name(column["type"])).classes("text-xs quiet break-anywhere text-right")
            if len(columns) > _MOST_COLUMNS:
                ui.label(f"And {len(columns) - _MOST_COLUMNS:,} more.").classes("text-sm quiet")


def _put(name: str, editor: ui.codemirror) -> ui.button:
    button = ui.button(name).props("flat dense no-caps align=left").classes("px-1 break-anywhere text-left text-sm")
    button.props["data-name"] = name
    named(button, f"Insert {name}").on("click", js_handler=_PUT % editor.id)
    return button


def _name(dataset: Dataset) -> str:
    return sql.path((dataset["schema_name"], dataset["table_name"]))
