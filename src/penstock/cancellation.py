"""Cancel the work of a request: its client has disconnected, its time is over, or a person cancelled it.

    with cancellation.active(token):            # in the thread that works
        with cancellation.on_cancel(interrupt):  # around a step that can be interrupted
            …

A step that was interrupted raises an error of its library; `raise_if_cancelled` replaces it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from penstock.errors import Unsupported


class CancelToken:
    """Cancel once, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: dict[object, Callable[[], object]] = {}
        self._reason = "request_cancelled"
        self.is_cancelled = False

    def cancel(self, reason: str = "request_cancelled") -> None:
        """Run the callbacks of the steps in progress. They must return quickly; a second call has no effect.

        Args:
            reason: of the error that the cancelled work raises
        """
        with self._lock:
            if self.is_cancelled:
                return
            self._reason, self.is_cancelled = reason, True
            callbacks = list(self._callbacks.values())
        for callback in callbacks:
            callback()

    def error(self) -> Unsupported:
        """Return the error of the cancelled work."""
        return Unsupported(self._reason)

    @contextmanager
    def on_cancel(self, callback: Callable[[], object]) -> Iterator[None]:
        """Call a function on cancellation during the block; at once if the token is cancelled already."""
        key = object()
        with self._lock:
            self._callbacks[key] = callback
            is_cancelled = self.is_cancelled
        try:
            if is_cancelled:
                callback()
            yield
        finally:
            with self._lock:
                del self._callbacks[key]


_CURRENT: ContextVar[CancelToken | None] = ContextVar("penstock_cancel_token", default=None)


def current() -> CancelToken | None:
    """Return the token of the request that this thread works for, if it has one."""
    return _CURRENT.get()


def raise_if_cancelled() -> None:
    """Raise `Unsupported` if the current request was cancelled (request_cancelled, query_cancelled)."""
    if (token := current()) and token.is_cancelled:
        raise token.error()


@contextmanager
def active(token: CancelToken | None) -> Iterator[None]:
    """Make a token the current one in this context."""
    reset = _CURRENT.set(token)
    try:
        yield
    finally:
        _CURRENT.reset(reset)


@contextmanager
def on_cancel(callback: Callable[[], object]) -> Iterator[None]:
    """Call a function if the current request is cancelled during the block."""
    token = current()
    if token is None:
        yield
        return
    with token.on_cancel(callback):
        yield
