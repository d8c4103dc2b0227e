"""Every error as a gRPC status: a code, a sentence, and for clients that look closer its reason and facts."""

import json
from dataclasses import dataclass

import grpc

from penstock.errors import (BEHIND, AlreadyExists, Conflict, Forbidden, Invalid, NotFound, PenstockError, Unauthenticated, Unavailable, Undecided, Unsupported)

KIND, REASON, FACTS, REQUEST = "penstock-kind", "penstock-reason", "penstock-facts", "x-request-id"

CODE: dict[type[PenstockError], grpc.StatusCode] = {
    Invalid: grpc.StatusCode.INVALID_ARGUMENT,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    Forbidden: grpc.StatusCode.PERMISSION_DENIED,
    NotFound: grpc.StatusCode.NOT_FOUND,
    AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    Conflict: grpc.StatusCode.ABORTED,
    Unsupported: grpc.StatusCode.FAILED_PRECONDITION,
    Undecided: grpc.StatusCode.UNKNOWN,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
}

# Reasons that gRPC has a better word for than their kind's.
CODE_OF: dict[str, grpc.StatusCode] = {
    **dict.fromkeys(
        (
            "batch_too_large", "command_too_large", "header_too_large", "returned_too_large", "row_too_large",
            "too_many_calls", "too_many_row_ids", "too_many_transactions", "write_too_large",
        ),
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    ),
    "not_served": grpc.StatusCode.UNIMPLEMENTED,
    "unknown_action": grpc.StatusCode.UNIMPLEMENTED,
}  # fmt: skip

# A client refuses an answer whose headers have more than 8 KiB, and %-escapes make three bytes of one.
_MOST_SENTENCE, _MOST_FACTS = 1_500, 2_000


@dataclass(frozen=True, slots=True)
class Told:
    code: grpc.StatusCode
    sentence: str
    trailing: tuple[tuple[str, str], ...]


def code(error: PenstockError) -> grpc.StatusCode:
    return CODE_OF.get(error.reason, CODE[type(error)])


def told(error: PenstockError, request: str) -> Told:
    """The error as a caller may hear it."""
    behind = BEHIND.get(error.reason)
    sentence = (behind or error.message).encode("utf-8", "backslashreplace")[:_MOST_SENTENCE].decode("utf-8", "ignore")
    facts = "{}" if behind else json.dumps(error.context, default=str)
    trailing = [(KIND, error.kind), (REASON, error.reason), (REQUEST, request)]
    if len(facts) <= _MOST_FACTS:
        trailing.append((FACTS, facts))
    return Told(code(error), sentence, tuple(trailing))


def bug(request: str) -> Told:
    """What the caller hears of an error that is none of ours. The log has the rest."""
    sentence = f"something went wrong that is not your fault; the log tells more under request {request}"
    return Told(grpc.StatusCode.INTERNAL, sentence, ((REASON, "internal_error"), (REQUEST, request)))
