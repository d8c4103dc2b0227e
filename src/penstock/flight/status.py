"""Convert errors to gRPC statuses: a code and a message, with the reason and facts in the trailing metadata."""

import json
from dataclasses import dataclass

import grpc

from penstock.errors import (
    PUBLIC_MESSAGES,
    AlreadyExists,
    CommitStateUnknown,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    PenstockError,
    Unauthenticated,
    Unavailable,
    Unsupported,
)

KIND_HEADER, REASON_HEADER, FACTS_HEADER = "penstock-kind", "penstock-reason", "penstock-facts"
REQUEST_ID_HEADER = "x-request-id"

CODE_BY_KIND: dict[type[PenstockError], grpc.StatusCode] = {
    Invalid: grpc.StatusCode.INVALID_ARGUMENT,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    Forbidden: grpc.StatusCode.PERMISSION_DENIED,
    NotFound: grpc.StatusCode.NOT_FOUND,
    AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    Conflict: grpc.StatusCode.ABORTED,
    Unsupported: grpc.StatusCode.FAILED_PRECONDITION,
    CommitStateUnknown: grpc.StatusCode.UNKNOWN,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
}

# Reasons with a more specific gRPC code than the code of their kind.
CODE_BY_REASON: dict[str, grpc.StatusCode] = {
    **dict.fromkeys(
        (
            "batch_too_large", "command_too_large", "header_too_large", "memory_exhausted", "returned_too_large",
            "row_too_large", "schema_too_large", "tenant_busy", "tenant_memory_exhausted", "too_many_calls", "too_many_row_ids", "too_many_transactions", "write_too_large",
        ),
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    ),
    **dict.fromkeys(("dataset_locked", "transaction_busy"), grpc.StatusCode.UNAVAILABLE),  # busy, not a conflict
    "request_cancelled": grpc.StatusCode.CANCELLED,
    "not_implemented": grpc.StatusCode.UNIMPLEMENTED,
    "unknown_action": grpc.StatusCode.UNIMPLEMENTED,
}  # fmt: skip

# Clients reject a response with more than 8 KiB of headers, and percent-encoding can triple the size of a message.
_MAX_MESSAGE_BYTES, _MAX_FACTS_CHARACTERS = 1_500, 2_000


@dataclass(frozen=True, slots=True)
class CallStatus:
    code: grpc.StatusCode
    message: str
    trailing_metadata: tuple[tuple[str, str], ...]


def status_code(error: PenstockError) -> grpc.StatusCode:
    """Return the gRPC code of an error."""
    return CODE_BY_REASON.get(error.reason, CODE_BY_KIND[type(error)])


def to_call_status(error: PenstockError, request_id: str) -> CallStatus:
    """Return the status for an error, without details of the server's files and databases."""
    public_message = PUBLIC_MESSAGES.get(error.reason)
    encoded = (public_message or error.message).encode("utf-8", "backslashreplace")
    facts = "{}" if public_message else json.dumps(error.context, default=str)
    trailing_metadata = [
        (KIND_HEADER, error.kind),
        (REASON_HEADER, error.reason),
        (REQUEST_ID_HEADER, request_id),
    ]
    if len(facts) <= _MAX_FACTS_CHARACTERS:
        trailing_metadata.append((FACTS_HEADER, facts))
    message = encoded[:_MAX_MESSAGE_BYTES].decode("utf-8", "ignore")
    return CallStatus(status_code(error), message, tuple(trailing_metadata))


def internal_error_status(request_id: str) -> CallStatus:
    """Return the status for an unexpected exception; its details are only in the log."""
    trailing_metadata = ((REASON_HEADER, "internal_error"), (REQUEST_ID_HEADER, request_id))
    return CallStatus(grpc.StatusCode.INTERNAL, f"Internal error. Request id: {request_id}", trailing_metadata)
