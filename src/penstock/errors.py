"""The kinds of error: what went wrong, and what the caller can do about it.

    PenstockError
    ├── Invalid           the request is wrong; change it                    (also a ValueError)
    ├── Unauthenticated   we do not know who you are; send a valid token
    ├── Forbidden         we know you, and your role does not allow this
    ├── NotFound          there is no such thing, or none that you may see   (also a LookupError)
    ├── AlreadyExists     the name or the key is taken
    ├── Conflict          somebody came first; read again and retry
    ├── Unsupported       a sound request that this thing cannot serve
    ├── Undecided         the outcome is not known; retry with the same key
    └── Unavailable       a part is down or busy; retry later

Every error carries a `reason` (a snake_case word that never changes once released), a sentence
for a person, and facts as `context`. Anything else that escapes is a bug in Penstock.
"""

from typing import Any, ClassVar


class PenstockError(Exception):
    retry: ClassVar[bool] = False  # may the very same request succeed later?

    def __init__(self, reason: str, message: str, **context: Any) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.context = context

    @property
    def kind(self) -> str:
        return type(self).__name__

    def facts(self) -> dict[str, Any]:
        """The error as plain values, for JSON and logs."""
        return {"kind": self.kind, "reason": self.reason, "message": self.message, **self.context}

    def __reduce__(self) -> Any:  # survives a trip between processes
        return _revive, (type(self), self.reason, self.message, self.context)


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


class Undecided(PenstockError):
    pass


class Unavailable(PenstockError):
    retry = True


KINDS: tuple[type[PenstockError], ...] = (
    Invalid, Unauthenticated, Forbidden, NotFound, AlreadyExists, Conflict, Unsupported, Undecided, Unavailable,
)  # fmt: skip

# What a caller from outside hears of trouble behind the scenes: not where files and databases are, nor what they say.
BEHIND = {
    "database_unavailable": "the catalog cannot be reached; try again later",
    "commit_unanswered": "the catalog did not answer, so nobody knows whether it was done; look before you send it again",
    "storage_failed": "a file could not be read or written; try again later",
    "file_failed": "a file could not be read or written; try again later",
}


def _revive(kind: type[PenstockError], reason: str, message: str, context: dict[str, Any]) -> PenstockError:
    return kind(reason, message, **context)
