"""A place for code: it has a name, follows the page's theme, and shows what is wrong on which line."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, LiteralString
from uuid import UUID

from nicegui import ui

_STYLE = """
.penstock-wrong { background-color: #d6453d2e; box-shadow: inset 3px 0 #d6453d; }
.penstock-hint { font-style: italic; opacity: .75; padding-left: .75em; user-select: none; }
.penstock-code { border: 1px solid #75828c77; border-radius: 4px; overflow: hidden; }
.penstock-code .cm-editor { font-size: 13px; }
"""
# CodeMirror has themes of its own, so the page's is handed on, now and whenever it changes.
_READY = """
(async () => {
  const element = getElement(%d), view = await element.editorPromise;
  view.contentDOM.setAttribute("aria-label", %s);
  const follow = () => element.setTheme(document.body.classList.contains("body--dark") ? "vscodeDark" : "vscodeLight");
  new MutationObserver(follow).observe(document.body, {attributes: true, attributeFilter: ["class"]});
  follow();
})()
"""
_INSERT = "(view => { view.dispatch(view.state.replaceSelection('%s')); view.focus(); })(getElement(%d).editor)"
_GO = """
(view => {
  view.dispatch({selection: {anchor: view.state.doc.line(Math.min(%d, view.state.doc.lines)).from}, scrollIntoView: true});
  view.focus();
})(getElement(%d).editor)
"""


def code_editor(
    text: str,
    language: Literal["JSON", "SQL"],
    *,
    name: LiteralString,
    on_change: Callable[[], Any] | None = None,
    read_only: bool = False,
) -> ui.codemirror:
    """An editor. Tab indents in it; who wants to leave it by keyboard presses Escape before."""
    ui.add_css(_STYLE)
    editor = ui.codemirror(text, language=language, on_change=on_change, indent="  ", line_wrapping=True)
    editor.classes("penstock-code w-full").style("height: min(60vh, 34rem)")
    editor.set_enabled(not read_only)
    ui.run_javascript(_READY % (editor.id, json.dumps(name)))
    return editor


def insert(editor: ui.codemirror, id: str) -> None:
    """Put an id where the cursor is, in place of what is selected."""
    ui.run_javascript(_INSERT % (UUID(id), editor.id))


def go_to(editor: ui.codemirror, line: int) -> None:
    ui.run_javascript(_GO % (line, editor.id))


def mark(editor: ui.codemirror, wrong: Mapping[int, str], hints: Sequence[tuple[int, str]]) -> None:
    """Show what is wrong with lines, and words behind places of the text. Both are shown as they are, as text."""
    editor.line_tooltips = dict(wrong)
    editor.decorations = [
        *({"kind": "line", "line": line, "class": "penstock-wrong"} for line in sorted(wrong)),
        *({"kind": "widget", "position": place, "text": words, "class": "penstock-hint"} for place, words in hints),
    ]
