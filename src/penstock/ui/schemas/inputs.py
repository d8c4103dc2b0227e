"""Text inputs with accessible errors, which detect text that the browser has cut."""

from typing import Any, TypeVar

from nicegui import ui
from nicegui.elements.mixins.validation_element import ValidationElement

from penstock.ui import formatting

# In UTF-16 units. The browser does not send messages of more than a million units, in which a quote takes four.
MAX_CHARS = 240_000
_EXTRA_CHARS = 100  # a browser does not cut within a character, so a cut text may be shorter than its maxlength


class _AccessibleErrors(ValidationElement[Any]):
    """Set `aria-invalid` on an input with an error, because Quasar does not."""

    def update(self) -> None:
        with self.props.suspend_updates():
            self.props.set_bool("aria-invalid", self.error is not None)
        super().update()


class Input(ui.input, _AccessibleErrors):
    pass


class Textarea(ui.textarea, _AccessibleErrors):
    pass


class Select(ui.select, _AccessibleErrors):
    pass


T = TypeVar("T", bound=ui.input)


def limit_length(element: T) -> T:
    """Limit an input to the length that reaches the service, and return it."""
    element.props["maxlength"] = MAX_CHARS + _EXTRA_CHARS
    return element


def reject_truncated(element: T, alternative: str) -> T:
    """Limit an input, reject text that the browser may have cut, and return the input.

    Args:
        element: The input.
        alternative: The API request that accepts longer texts.
    """
    limit = formatting.format_count(MAX_CHARS, "character")
    message = f"Only the first {limit} were accepted. Use {alternative} for longer texts."
    limit_length(element).validation = lambda text: message if is_truncated(text or "") else None
    return element


def is_truncated(text: str) -> bool:
    """Return whether the browser may have cut a text."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2 >= MAX_CHARS
