"""A place for code: it has a name and a limit, follows the page's theme, and shows what is wrong on which line."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, LiteralString
from uuid import UUID

from nicegui import ui

from penstock.ui.layout import say

MOST = 300_000  # characters, unless there are more to begin with
TOO_LONG = (
    "That would be too long for this page, so nothing has changed; send it through the API. "
    f"Here {MOST:,} characters are the most, and fewer where many of them are quotes."
)
_MOST_SENT = 900_000  # characters of a change: of a longer one NiceGUI's browser side sends nothing
_STYLE = """
.penstock-wrong { background-color: #d6453d2e; box-shadow: inset 3px 0 #d6453d; }
.penstock-hint { font-style: italic; opacity: .75; padding-left: .75em; user-select: none; }
.penstock-code { border: 1px solid #75828c77; border-radius: 4px; overflow: hidden; }
.penstock-code .cm-editor { font-size: 13px; }
"""
# CodeMirror has themes of its own, so the page's is handed on, now and whenever it changes.
# The service knows the text from its changes alone. One that would not reach it is none: also not one that undoes another,
# which no filter of CodeMirror sees. A change goes out as JSON within JSON.
_READY = """
(async () => {
  const element = getElement(%d), view = await element.editorPromise;
  view.contentDOM.setAttribute("aria-label", %s);
  const follow = () => element.setTheme(document.body.classList.contains("body--dark") ? "vscodeDark" : "vscodeLight");
  new MutationObserver(follow).observe(document.body, {attributes: true, attributeFilter: ["class"]});
  follow();
  const update = view.update.bind(view), most = Math.max(%d, view.state.doc.length);
  const isTooLong = each => each.docChanged && (
    (each.newDoc.length > most && each.newDoc.length > each.startState.doc.length)
    || JSON.stringify(JSON.stringify(each.changes)).length > %d);
  view.update = changes => {
    if (element.emitting && changes.some(isTooLong)) element.$emit("too-long");
    else update(changes);
  };
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
    plain = text.replace("\r\n", "\n").replace("\r", "\n")  # as CodeMirror counts
    editor = ui.codemirror(plain, language=language, on_change=on_change, indent="  ", line_wrapping=True)
    editor.on("too-long", lambda: say(TOO_LONG, bad=True), throttle=1, trailing_events=False)
    editor.classes("penstock-code w-full").style("height: min(60vh, 34rem)")
    editor.set_enabled(not read_only)
    ui.run_javascript(_READY % (editor.id, json.dumps(name), MOST, _MOST_SENT))
    return editor


def insert(editor: ui.codemirror, id: str) -> None:
    """Put an id where the cursor is, in place of what is selected."""
    ui.run_javascript(_INSERT % (UUID(id), editor.id))


def focus(editor: ui.codemirror) -> None:
    ui.run_javascript(f"getElement({editor.id}).editor.focus()")


def go_to(editor: ui.codemirror, line: int) -> None:
    ui.run_javascript(_GO % (line, editor.id))


def mark(editor: ui.codemirror, wrong: Mapping[int, str], hints: Sequence[tuple[int, str]]) -> None:
    """Show what is wrong with lines, and words behind places of the text. Both are shown as they are, as text."""
    editor.line_tooltips = dict(wrong)
    editor.decorations = [
        *({"kind": "line", "line": line, "class": "penstock-wrong"} for line in sorted(wrong)),
        *({"kind": "widget", "position": place, "text": words, "class": "penstock-hint"} for place, words in hints),
    ]
