"""Read JSON objects member by member, and raise the first error or collect all errors with their JSON pointers.

A reader detects the problems of `Problem`. Each interface has its own errors for them, some fixed by a contract:
`ReaderRules.to_error` creates them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeVar
from uuid import UUID

from penstock.core.names import has_invalid_characters, parse_uuid
from penstock.errors import Invalid

MAX_ERRORS = 100  # reported
MAX_TEXT_LENGTH = 100_000  # of a description
MAX_INTEGER = 2**63 - 1
_ENVELOPE = {"id", "entity"}

Default = TypeVar("Default")


class Problem(Enum):
    """Problems that a reader detects, with the values that `to_error` receives."""

    NOT_AN_OBJECT = auto()
    MISSING_MEMBER = auto()
    UNKNOWN_MEMBER = auto()  # valid
    NOT_TEXT = auto()
    TEXT_TOO_LONG = auto()  # length, max_length
    INVALID_CHARACTERS = auto()
    NOT_A_FLAG = auto()
    NOT_AN_INTEGER = auto()  # minimum
    NOT_A_UUID = auto()
    NOT_A_LIST = auto()
    EMPTY_LIST = auto()
    TOO_MANY_ITEMS = auto()  # count, max_items
    BAD_VALUE = auto()  # expected; only for callers that check a value themselves


_REASONS = {
    Problem.MISSING_MEMBER: "missing_member.required",
    Problem.UNKNOWN_MEMBER: "unknown_member.object",
    Problem.NOT_TEXT: "not_text.value",
    Problem.TEXT_TOO_LONG: "text_too_long",
    Problem.INVALID_CHARACTERS: "bad_text",
}


def escape_text(text: str) -> str:
    """Escape and truncate text for an error message."""
    return ascii(text[:128])[1:-1]


def to_registry_error(problem: Problem, path: str, values: Mapping[str, Any]) -> Invalid:
    """Create an error of a result schema or a registered query."""
    return Invalid(_REASONS[problem], {"member": escape_text(path), "subject": path, **values})


@dataclass(frozen=True, slots=True)
class ReaderRules:
    """Rules of an interface for reading JSON objects."""

    to_error: Callable[[Problem, str, Mapping[str, Any]], Invalid]  # of a problem, the path of the value and values
    strict: bool = False  # raise the first error; otherwise collect all
    null_is_absent: bool = True
    escape: Callable[[str], str] = escape_text  # makes the name of an unknown member a token of a JSON pointer


REGISTRY_RULES = ReaderRules(to_registry_error)


@dataclass(frozen=True, slots=True)
class MemberError:
    """An error, and the JSON pointer to the value that it is about."""

    pointer: str
    error: Invalid

    @classmethod
    def of(cls, pointer: str, key: str, values: Mapping[str, Any] | None = None) -> "MemberError":
        """Create an error from a row of `reasons.py`."""
        return cls(pointer, Invalid(key, values))


class ObjectReader:
    """Reader of a JSON object. A member that is absent or has an error is read as its default."""

    def __init__(
        self,
        value: Any,
        rules: ReaderRules = REGISTRY_RULES,
        pointer: str = "",
        errors: list[MemberError] | None = None,
    ) -> None:
        """Create a reader; `errors` is the list to which it adds errors."""
        self.rules, self.pointer = rules, pointer
        self.errors: list[MemberError] = [] if errors is None else errors
        self.is_object = isinstance(value, Mapping)
        self._members: Mapping[str, Any] = value if self.is_object else {}
        self._names_read = dict[str, None]()
        if not self.is_object:
            self.add_error(None, rules.to_error(Problem.NOT_AN_OBJECT, "", {}))

    # -- the object ----------------------------------------------------------------------------------------------------

    def __contains__(self, name: str) -> bool:
        return name in self._members and not (self.rules.null_is_absent and self._members[name] is None)

    def check_members(self, required: Sequence[str] = (), optional: Sequence[str] = ()) -> None:
        """Report missing members, then unknown ones."""
        self.require(*required)
        self.reject_unknown((*required, *optional))

    def require(self, *names: str) -> None:
        """Report missing members. A value that is not an object has been reported before."""
        for name in names:
            if self.is_object and name not in self:
                self.report(name, Problem.MISSING_MEMBER)

    def reject_unknown(self, valid: Sequence[str] | None = None, *, ignored: Sequence[str] = ()) -> None:
        """Report unknown members: all, or in a strict reader the first one in alphabetical order.

        Args:
            valid: names of the valid members; None: those that were read
            ignored: names of more members, which the error does not list
        """
        valid = tuple(self._names_read) if valid is None else valid
        unknown = self.find_unknown((*valid, *ignored))
        for name in sorted(unknown) if self.rules.strict else unknown:
            error = self.rules.to_error(Problem.UNKNOWN_MEMBER, name, {"valid": valid})
            self.add_error(self.rules.escape(name), error)

    def find_unknown(self, valid: Sequence[str]) -> list[str]:
        """Return the names of the members that are not valid."""
        return [name for name in self._members if name not in valid]

    # -- errors --------------------------------------------------------------------------------------------------------

    def to_error(self, path: str, problem: Problem, **values: Any) -> Invalid:
        """Create the error of a problem with the value at a path below this object."""
        return self.rules.to_error(problem, path, values)

    def report(self, path: str, problem: Problem, **values: Any) -> None:
        """Record or raise the error of a problem with the value at a path below this object."""
        self.add_error(path, self.to_error(path, problem, **values))

    def add_error(self, path: str | None, error: Invalid) -> None:
        """Record an error with the value at a path below this object (None: the object), or raise it if strict."""
        if self.rules.strict:
            raise error
        self.errors.append(MemberError(self.pointer if path is None else f"{self.pointer}/{path}", error))

    # -- members -------------------------------------------------------------------------------------------------------

    def get(self, name: str) -> Any:
        """Return the value of a member, unchecked; None if it is absent."""
        self._names_read[name] = None
        return self._members.get(name)

    def read(self, name: str, parse: Callable[[Any], Any], *, required: bool | Invalid = False) -> Any:
        """Read a member with a function; None if the member is absent or has an error.

        Args:
            name: name of the member
            parse: converts the value, or raises `Invalid`
            required: whether the member is required, or the error to report if it is missing
        """
        value = self.get(name)
        if name not in self:
            if isinstance(required, Invalid):
                self.add_error(name, required)
            elif required:
                self.require(name)
            return None
        try:
            return parse(value)
        except Invalid as error:
            self.add_error(name, error)
            return None

    def text(
        self, name: str, default: Default, *, required: bool = False, max_length: int | None = None
    ) -> str | Default:
        """Read a string that every database can store."""
        value = self.get(name)
        if name not in self:
            if required:
                self.require(name)
            return default
        return value if self._check_text(name, value, max_length) else default

    def flag(self, name: str, default: Default) -> bool | Default:
        """Read true or false."""
        value = self.get(name)
        return value if isinstance(value, bool) else self._reject(name, default, Problem.NOT_A_FLAG)

    def integer(self, name: str, minimum: int, default: Default, *, accept_float: bool = False) -> int | Default:
        """Read an integer of up to 64 bits; with `accept_float` also 2.0, as in JSON Schema."""
        value = self.get(name)
        is_number = isinstance(value, int) or (accept_float and isinstance(value, float) and value.is_integer())
        if is_number and not isinstance(value, bool) and minimum <= value <= MAX_INTEGER:
            return int(value)
        return self._reject(name, default, Problem.NOT_AN_INTEGER, minimum=minimum)

    def uuid(self, name: str, default: Default) -> UUID | Default:
        """Read a UUID in its canonical spelling."""
        value = self.get(name)
        id = parse_uuid(value) if isinstance(value, str) else None
        return id or self._reject(name, default, Problem.NOT_A_UUID)

    def items(self, name: str, max_items: int, *, accept_empty: bool = False) -> list[Any]:
        """Read a list, at most its first `max_items` items."""
        value = self.get(name)
        if not isinstance(value, list):
            return self._reject(name, [], Problem.NOT_A_LIST)
        if not value and not accept_empty:
            self.report(name, Problem.EMPTY_LIST)
        if len(value) > max_items:
            self.report(name, Problem.TOO_MANY_ITEMS, count=len(value), max_items=max_items)
        return value[:max_items]

    def texts(self, name: str, max_items: int, *, max_length: int | None = None) -> list[str]:
        """Read a list of strings."""
        items = enumerate(self.items(name, max_items))
        return [item for index, item in items if self._check_text(f"{name}/{index}", item, max_length)]

    def object(self, name: str, *, required: Sequence[str] = (), optional: Sequence[str] = ()) -> "ObjectReader":
        """Return a reader of a member that is an object with these members; of an empty object if it is absent."""
        value = self.get(name)
        if name not in self:
            return ObjectReader({}, self.rules)
        reader = self.child(name, value)
        reader.check_members(required, optional)
        return reader

    def child(self, path: str, value: Any, rules: ReaderRules | None = None) -> "ObjectReader":
        """Return a reader of an object at a path below this one, which adds its errors to the same list."""
        return ObjectReader(value, rules or self.rules, f"{self.pointer}/{path}", self.errors)

    def _reject(self, name: str, default: Default, problem: Problem, **values: Any) -> Default:
        """Return the default of a member, and report the problem unless the member is absent."""
        if name in self:
            self.report(name, problem, **values)
        return default

    def _check_text(self, path: str, value: Any, max_length: int | None) -> bool:
        if problem := _find_text_problem(value, max_length):
            self.report(path, problem[0], **problem[1])
        return problem is None


def check_text(value: Any, subject: str, max_length: int) -> str:
    """Check that a value is a string that every database can store."""
    if problem := _find_text_problem(value, max_length):
        raise to_registry_error(problem[0], subject, problem[1])
    return str(value)


def unwrap_entity(payload: Any, expected: str) -> dict[str, Any]:
    """Return the object in a payload, which may be wrapped as `{"id"?, "entity"}`; the id is the server's."""
    if isinstance(payload, dict) and "entity" in payload and set(payload) <= _ENVELOPE:
        payload = payload["entity"]
    if not isinstance(payload, dict):
        raise Invalid("bad_payload.not_an_object", {"expected": expected})
    return payload


def unwrap_patch(operations: Any) -> Any:
    """Return a JSON Patch of a wrapped object as one of the object: `/entity/name` becomes `/name`."""
    if not isinstance(operations, list):
        return operations
    return [_unwrap_operation(item) if isinstance(item, dict) else item for item in operations]


def _unwrap_operation(operation: dict[str, Any]) -> dict[str, Any]:
    pointers = {
        member: pointer.removeprefix("/entity")
        for member in ("path", "from")
        if isinstance(pointer := operation.get(member), str) and (pointer + "/").startswith("/entity/")
    }
    return {**operation, **pointers}


def list_entries(errors: Iterable[MemberError]) -> list[dict[str, Any]]:
    """Return errors for the member `errors` of a response; an error that contains others is replaced by them."""
    entries = list[dict[str, Any]]()
    for member in errors:
        entry = {"pointer": member.pointer, "message": member.error.message, "code": member.error.reason}
        entries += member.error.context.get("errors", [entry])
    return entries


def raise_errors(reason: str, errors: Iterable[MemberError]) -> None:
    """Raise an error with all errors, if there are any. Its message contains the first one."""
    if entries := list_entries(errors):
        more = f" ({len(entries) - 1} more in errors)" if len(entries) > 1 else ""
        values = {"pointer": entries[0]["pointer"], "message": entries[0]["message"], "more": more}
        raise Invalid(reason, values, errors=entries[:MAX_ERRORS])


def _find_text_problem(value: Any, max_length: int | None) -> tuple[Problem, dict[str, Any]] | None:
    if not isinstance(value, str):
        return Problem.NOT_TEXT, {}
    if max_length is not None and len(value) > max_length:
        return Problem.TEXT_TOO_LONG, {"length": len(value), "max_length": max_length}
    return (Problem.INVALID_CHARACTERS, {}) if has_invalid_characters(value) else None
