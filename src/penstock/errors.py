"""Error classes, by what the caller can do.

    PenstockError
    ├── Invalid             the request is wrong; change it (also a ValueError)
    ├── Unauthenticated     the caller is unknown; send a valid token
    ├── Forbidden           the caller's role does not allow the operation
    ├── NotFound            the object does not exist, or is not visible to the caller (also a LookupError)
    ├── AlreadyExists       the name or the key is in use
    ├── Conflict            another writer committed first; read again and retry
    ├── Unsupported         a valid request that the object or the server does not support
    ├── CommitStateUnknown  the outcome is unknown; retry with the same idempotency key
    └── Unavailable         a component is down or busy; retry later

Every error has a `reason` (a snake_case identifier that never changes once released), a message for people, and facts
for programs as `context`. `reasons.py` lists every reason. Any other exception that reaches a caller is a bug in Penstock.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock import reasons


class PenstockError(Exception):
    retry: ClassVar[bool] = False  # whether the same request may succeed later

    def __init__(self, reason: str, values: Mapping[str, Any] | str | None = None, /, **context: Any) -> None:
        """Create an error from its row in `reasons.py`.

        Args:
            reason: a key of `REASONS`: the reason, or `reason.variant`
            values: fills the placeholders of the message, beside `context`; or a complete message (of another process,
                or one that a contract fixes)
            context: facts for programs, returned to the caller with the message
        """
        message = values if isinstance(values, str) else reasons.message(reason, {**context, **(values or {})})
        super().__init__(message)
        self.reason = reason.partition(".")[0]
        self.message = message
        self.context = context

    @property
    def kind(self) -> str:
        """Return the name of the error class."""
        return type(self).__name__

    def as_dict(self) -> dict[str, Any]:
        """Return the error as plain values, for JSON and logs."""
        return {"kind": self.kind, "reason": self.reason, "message": self.message, **self.context}

    def __reduce__(self) -> Any:  # makes the error picklable
        return _restore, (type(self), self.reason, self.message, self.context)


class Invalid(PenstockError, ValueError):
    pass


class Unauthenticated(PenstockError):
    pass


class Forbidden(PenstockError):
    pass


class NotFound(PenstockError, LookupError):
    pass


class AlreadyExists(PenstockError):
    pass


class Conflict(PenstockError):
    retry = True


class Unsupported(PenstockError):
    pass


class CommitStateUnknown(PenstockError):
    pass


class Unavailable(PenstockError):
    retry = True


KINDS: tuple[type[PenstockError], ...] = (
    Invalid, Unauthenticated, Forbidden, NotFound, AlreadyExists, Conflict, Unsupported, CommitStateUnknown, Unavailable,
)  # fmt: skip

# Messages for remote callers in place of internal ones, which contain file paths and database messages.
PUBLIC_MESSAGES = {
    "database_unavailable": "The catalog is not reachable. Try again later",
    "commit_unanswered": "The catalog did not respond, so the outcome is unknown. Check the result before sending the request again",
    "storage_failed": "A file could not be read or written. Try again later",
    "file_failed": "A file could not be read or written. Try again later",
    "missing_java": "Spark cannot be started because Java is missing on the server. Inform its operator",
    "java_too_old": "Spark cannot be started because the server has an old version of Java. Inform its operator",
    "spark_start_failed": "Spark cannot be started on the server. Try again later, or inform its operator",
    "spark_connect": "Spark cannot be started because the server is configured for Spark Connect. Inform its operator",
}


def public_error(error: PenstockError) -> PenstockError:
    """Return the error for remote callers, without internal details. An operation keeps its order and alias."""
    message = PUBLIC_MESSAGES.get(error.reason)
    if message is None:
        return error
    facts = {name: error.context[name] for name in ("operation_order", "alias") if name in error.context}
    return type(error)(error.reason, message, **facts)


def _restore(kind: type[PenstockError], reason: str, message: str, context: dict[str, Any]) -> PenstockError:
    return kind(reason, message, **context)
