"""What DuckDB says when it refuses, in words that may be passed on: no paths, no addresses, no values of rows."""

import re
from typing import Any

_KIND = re.compile(r"\b([A-Z][A-Za-z]+(?: [A-Za-z]+){0,3}) Error: ")
_MEMORY = re.compile(r"out of memory|bad_alloc|malloc of size|failed to allocate|could not allocate", re.IGNORECASE)
_FILE = re.compile(r"failed to open local file|no such file|parquet magic|reading the stream registered", re.IGNORECASE)
_HIDDEN = re.compile(r"(?<![\w/])(?:file:)?(?:/[^\s'\"/]+){2,}/?|0x[0-9a-fA-F]+")
_MAX = 500

# Of these kinds DuckDB's own words are passed on, if it said them when it had read the statement and no row.
_OF_THE_STATEMENT = {"Parser", "Syntax", "Binder", "Catalog", "Not implemented", "Permission", "Parameter Not Resolved"}
_UNGIVEN = re.compile(r"Values were not provided for the following parameters", re.IGNORECASE)
# Messages of others quote the value that did not fit; what is said instead.
_SAID = {
    "Conversion": "a value could not be converted",
    "Out of Range": "a value is out of range",
    "Mismatch Type": "a value has another type than expected",
    "Invalid type": "a value has another type than expected",
    "Constraint": "a value is not allowed",
    "Invalid Input": "a value is not allowed here, or a function refused it",
    "Not implemented": "a function does not know a value that it was given",
    "Binder": "a function could not work with a value that it was given",
    "Catalog": "a function looked for something that is not there",
    "Permission": "it is not allowed in a query",
    "IO": "something could not be read",
    "Interrupt": "it was interrupted",
}


def told(cause: BaseException, *, of_statement: bool = False) -> dict[str, Any]:
    """A reason and a sentence. `of_statement`: no row had been read yet."""
    text = str(cause)
    if isinstance(cause, MemoryError) or _MEMORY.search(text):
        return {"reason": "query_out_of_memory"}
    if isinstance(cause, FileNotFoundError) or _FILE.search(text):
        return {"reason": "file_unreadable"}
    return {"reason": "query_failed", "message": cleaned(text, of_statement=of_statement)}


def cleaned(text: str, *, of_statement: bool = False) -> str:
    line = text.strip().partition("\n")[0]
    found = _KIND.search(line)
    if found is None:
        return "DuckDB could not carry it out"
    kind, said = found[1], line[found.end() :]
    if (of_statement and kind in _OF_THE_STATEMENT) or _UNGIVEN.match(said):
        return _HIDDEN.sub("…", f"{kind} Error: {said}")[:_MAX]
    return f"{kind} Error: {_SAID[kind]}" if kind in _SAID else "DuckDB could not carry it out"
