"""Redact the error messages of DuckDB: no paths, no memory addresses, no values of rows."""

import re
from typing import Any

_ERROR_TYPE = re.compile(r"\b([A-Z][A-Za-z]+(?: [A-Za-z]+){0,3}) Error: ")
_MEMORY = re.compile(r"out of memory|bad_alloc|malloc of size|failed to allocate|could not allocate", re.IGNORECASE)
_FILE = re.compile(r"failed to open local file|no such file|parquet magic|reading the stream registered", re.IGNORECASE)
_PATH_OR_ADDRESS = re.compile(r"(?<![\w/])(?:file:)?(?:/[^\s'\"/]+){2,}/?|0x[0-9a-fA-F]+")
_MAX_CHARACTERS = 500

# Error types whose message is passed on, if DuckDB raised it after parsing and before reading any row.
_STATEMENT_ERRORS = {"Parser", "Syntax", "Binder", "Catalog", "Not implemented", "Permission", "Parameter Not Resolved"}
_MISSING_VALUES = re.compile(r"Values were not provided for the following parameters", re.IGNORECASE)
# Other messages quote the offending value, so they are replaced.
_REPLACEMENTS = {
    "Conversion": "a value could not be converted",
    "Out of Range": "a value is out of range",
    "Mismatch Type": "a value has an unexpected type",
    "Invalid type": "a value has an unexpected type",
    "Constraint": "a value is not allowed",
    "Invalid Input": "a value is not allowed, or a function rejected it",
    "Not implemented": "a function does not support one of its arguments",
    "Binder": "a function does not support one of its arguments",
    "Catalog": "a function refers to an object that does not exist",
    "Permission": "the operation is not allowed in a query",
    "IO": "a read failed",
    "Interrupt": "the query was interrupted",
}
_UNKNOWN_ERROR = "DuckDB could not execute the query"


def describe_error(cause: BaseException, *, before_execution: bool = False) -> dict[str, Any]:
    """Return the reason and the redacted message of an error; `before_execution`: no row had been read."""
    text = str(cause)
    if isinstance(cause, MemoryError) or _MEMORY.search(text):
        return {"reason": "query_out_of_memory"}
    if isinstance(cause, FileNotFoundError) or _FILE.search(text):
        return {"reason": "file_unreadable"}
    return {"reason": "query_failed", "message": redact_message(text, before_execution=before_execution)}


def redact_message(text: str, *, before_execution: bool = False) -> str:
    """Return the first line of a DuckDB message without paths, addresses and values."""
    line = text.strip().partition("\n")[0]
    match = _ERROR_TYPE.search(line)
    if match is None:
        return _UNKNOWN_ERROR
    error_type, message = match[1], line[match.end() :]
    if (before_execution and error_type in _STATEMENT_ERRORS) or _MISSING_VALUES.match(message):
        return _PATH_OR_ADDRESS.sub("…", f"{error_type} Error: {message}")[:_MAX_CHARACTERS]
    return f"{error_type} Error: {_REPLACEMENTS[error_type]}" if error_type in _REPLACEMENTS else _UNKNOWN_ERROR
