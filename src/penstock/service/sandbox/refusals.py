"""What DuckDB says when it refuses, in words that may be passed on: no paths, no addresses, no values of rows."""

import re
from typing import Any

_KIND = re.compile(r"\b([A-Z][A-Za-z]+(?: [A-Za-z]+){0,3}) Error: ")
_MEMORY = re.compile(r"out of memory|bad_alloc|malloc of size|failed to allocate|could not allocate", re.IGNORECASE)
_FILE = re.compile(r"failed to open local file|no such file|parquet magic|reading the stream registered", re.IGNORECASE)
_HIDDEN = re.compile(r"(?<![\w/])(?:file:)?(?:/[^\s'\"/]+){2,}/?|0x[0-9a-fA-F]+")
_MAX = 500

# Messages of these kinds quote the value that did not fit; what is said instead.
_QUOTING = {
    "Conversion": "a value could not be converted",
    "Out of Range": "a value is out of range",
    "Mismatch Type": "a value has another type than expected",
    "Invalid type": "a value has another type than expected",
    "Constraint": "a value is not allowed",
    "Invalid Input": "a value is not allowed here, or a function refused it",
}
# Those of the kinds above that speak of the statement and not of a value.
_OF_THE_STATEMENT = re.compile(r"Values were not provided for the following parameters", re.IGNORECASE)


def told(cause: BaseException) -> dict[str, Any]:
    """A reason and a sentence."""
    text = str(cause)
    if isinstance(cause, MemoryError) or _MEMORY.search(text):
        return {"reason": "query_out_of_memory"}
    if isinstance(cause, FileNotFoundError) or _FILE.search(text):
        return {"reason": "file_unreadable"}
    return {"reason": "query_failed", "message": cleaned(text)}


def cleaned(text: str) -> str:
    line = text.strip().partition("\n")[0]
    found = _KIND.search(line)
    if found is None:
        return "DuckDB could not carry it out"
    kind, said = found[1], line[found.end() :]
    if kind in _QUOTING and not _OF_THE_STATEMENT.match(said):
        return f"{kind} Error: {_QUOTING[kind]}"
    return _HIDDEN.sub("…", f"{kind} Error: {said}")[:_MAX]
