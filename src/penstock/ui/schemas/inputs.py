"""What people write into: what is wrong is told to everybody, and a text that was cut is not taken for the whole."""

from typing import Any, TypeVar

from nicegui import ui
from nicegui.elements.mixins.validation_element import ValidationElement

# UTF-16 units of a text. The browser drops a message of over a million, in which a quote takes four.
LONGEST = 240_000
_SLACK = 100  # so that a text counts as cut wherever the browser cuts it, which is never within a character


class _Heard(ValidationElement[Any]):
    """An input that is also marked as wrong for those who cannot see it, which Quasar leaves out."""

    def update(self) -> None:
        with self.props.suspend_updates():
            self.props.set_bool("aria-invalid", self.error is not None)
        super().update()


class Input(ui.input, _Heard):
    pass


class Textarea(ui.textarea, _Heard):
    pass


class Select(ui.select, _Heard):
    pass


T = TypeVar("T", bound=ui.input)


def bounded(element: T) -> T:
    """The same input, which takes no more than arrives at the service. That must refuse what is as long."""
    element.props["maxlength"] = LONGEST + _SLACK
    return element


def whole(element: T, instead: str) -> T:
    """The same input, bounded, and not valid if a part of the text may be missing. `instead`: what takes longer ones."""
    said = f"Only the first {LONGEST:,} characters fit here; use {instead} for more."
    bounded(element).validation = lambda text: said if is_cut(text or "") else None
    return element


def is_cut(text: str) -> bool:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2 >= LONGEST
