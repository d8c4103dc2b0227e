"""What somebody sends, read member by member: all that is wrong with it is told at once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.core.names import unstorable
from penstock.errors import Invalid

MAX_ERRORS = 100  # that are told
MAX_TEXT = 100_000  # characters of a description


class Reading:
    """Reads the members of an object and keeps every refusal; what cannot be read is None."""

    def __init__(
        self,
        given: Mapping[str, Any],
        known: Sequence[str],
        *,
        also: Sequence[str] = (),
        pointer: str = "",
        stranger: str = "there is no such member",
    ) -> None:
        self._given, self._pointer = given, pointer
        self.refusals, self.errors = list[Invalid](), list[dict[str, Any]]()
        for member in given:
            if member not in known and member not in also:
                problem = stranger.format(member)
                self.complain(shown(member), Invalid("unknown_member", f"{problem}; there are {', '.join(known)}"))

    def take(self, member: str, read: Callable[[Any], Any], *, required: bool | Invalid = False) -> Any:
        """`required` may be the refusal of who leaves it out."""
        if (value := self._given.get(member)) is None:
            if required:
                missing = Invalid("missing_member", f"{member} is required")
                self.complain(member, missing if required is True else required)
            return None
        try:
            return read(value)
        except Invalid as refusal:
            self.complain(member, refusal)
            return None

    def complain(self, member: str, refusal: Invalid) -> None:
        self.refusals.append(refusal)
        one = error(f"{self._pointer}/{member}", refusal.reason, refusal.message)
        self.errors += refusal.context.get("errors", [one])


def entity(payload: Any, wanted: str) -> dict[str, Any]:
    """The object that a payload holds, flat or as its member `entity`."""
    if isinstance(payload, dict) and set(payload) == {"entity"}:
        payload = payload["entity"]
    if not isinstance(payload, dict):
        raise Invalid("bad_payload", f"the body must be a JSON object: {wanted}")
    return payload


def text(value: Any, what: str, most: int) -> str:
    """Text that every database can keep."""
    if not isinstance(value, str):
        raise Invalid("not_text", f"{what} must be text")
    if len(value) > most:
        raise Invalid("text_too_long", f"{what} has {len(value):,} characters; at most {most:,} are allowed")
    if unstorable(value):
        raise Invalid("bad_text", f"{what} holds a character that cannot be stored (NUL or half a surrogate pair)")
    return value


def description(value: Any) -> str:
    return text(value, "description", MAX_TEXT)


def error(pointer: str, code: str, message: str) -> dict[str, Any]:
    return {"pointer": pointer, "message": message, "code": code}


def refuse(reason: str, errors: Sequence[dict[str, Any]], first: str = "{pointer}: {message}") -> None:
    """If there are errors, say the first, and how many there are besides."""
    if errors:
        more = f" ({len(errors) - 1} more in errors)" if len(errors) > 1 else ""
        raise Invalid(reason, first.format(**errors[0]) + more, errors=errors[:MAX_ERRORS])


def shown(name: str) -> str:
    """A name from outside, safe to print: escaped and cut."""
    return ascii(name[:128])[1:-1]
