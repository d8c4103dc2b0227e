"""Code editor: limits the length of the text, follows the theme of the page, and marks lines with errors."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, LiteralString
from uuid import UUID

from nicegui import ui

from penstock.ui import formatting
from penstock.ui.elements import notify

MAX_CHARS = 300_000  # unless the initial text is longer
TOO_LONG = (
    "The text is too long for this page, and nothing was changed. Use the API for longer texts. "
    f"The limit is {formatting.format_count(MAX_CHARS, 'character')}, and fewer if the text has many quotes."
)
_MAX_CHANGE_CHARS = 900_000  # NiceGUI's browser code does not send longer changes
# CodeMirror has its own themes, so the script copies the theme of the page, now and after every change.
# The service only knows the text from the changes that it receives. A change that is too long to be sent must therefore
# not be applied, including an undo, which no CodeMirror filter sees. A change is sent as JSON within JSON.
_PREPARE = """
(async () => {
  const element = getElement(%d), view = await element.editorPromise;
  view.contentDOM.setAttribute("aria-label", %s);
  const copyTheme = () => element.setTheme(document.body.classList.contains("body--dark") ? "vscodeDark" : "vscodeLight");
  new MutationObserver(copyTheme).observe(document.body, {attributes: true, attributeFilter: ["class"]});
  copyTheme();
  const update = view.update.bind(view), maxChars = Math.max(%d, view.state.doc.length);
  const isTooLong = change => change.docChanged && (
    (change.newDoc.length > maxChars && change.newDoc.length > change.startState.doc.length)
    || JSON.stringify(JSON.stringify(change.changes)).length > %d);
  view.update = changes => {
    if (element.emitting && changes.some(isTooLong)) element.$emit("too-long");
    else update(changes);
  };
})()
"""
_INSERT = "(view => { view.dispatch(view.state.replaceSelection('%s')); view.focus(); })(getElement(%d).editor)"
_GO_TO_LINE = """
(view => {
  view.dispatch({selection: {anchor: view.state.doc.line(Math.min(%d, view.state.doc.lines)).from}, scrollIntoView: true});
  view.focus();
})(getElement(%d).editor)
"""


def create_code_editor(
    text: str,
    language: Literal["JSON", "SQL"],
    *,
    label: LiteralString,
    on_change: Callable[[], Any] | None = None,
    read_only: bool = False,
) -> ui.codemirror:
    """Create an editor. Tab indents; Escape, then Tab, leaves the editor by keyboard."""
    normalized = text.replace("\r\n", "\n").replace("\r", "\n")  # CodeMirror counts a line break as one character
    editor = ui.codemirror(normalized, language=language, on_change=on_change, indent="  ", line_wrapping=True)
    editor.on("too-long", lambda: notify(TOO_LONG, is_error=True), throttle=1, trailing_events=False)
    editor.classes("penstock-code w-full").style("height: min(60vh, 34rem)")
    editor.set_enabled(not read_only)
    ui.run_javascript(_PREPARE % (editor.id, json.dumps(label), MAX_CHARS, _MAX_CHANGE_CHARS))
    return editor


def insert_id(editor: ui.codemirror, id: str) -> None:
    """Insert an id at the cursor, or replace the selection by it."""
    ui.run_javascript(_INSERT % (UUID(id), editor.id))


def focus_editor(editor: ui.codemirror) -> None:
    """Set the keyboard focus to the editor."""
    ui.run_javascript(f"getElement({editor.id}).editor.focus()")


def go_to_line(editor: ui.codemirror, line: int) -> None:
    """Move the cursor to a line and scroll to it."""
    ui.run_javascript(_GO_TO_LINE % (line, editor.id))


def mark_lines(editor: ui.codemirror, line_errors: Mapping[int, str], hints: Sequence[tuple[int, str]]) -> None:
    """Mark lines with errors, and show hints behind positions of the text. Both are shown as plain text."""
    editor.line_tooltips = dict(line_errors)
    editor.decorations = [
        *({"kind": "line", "line": line, "class": "penstock-wrong"} for line in sorted(line_errors)),
        *({"kind": "widget", "position": position, "text": hint, "class": "penstock-hint"} for position, hint in hints),
    ]
