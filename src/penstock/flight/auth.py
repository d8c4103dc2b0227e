"""Authenticate Flight calls by the token in their authorization header."""

from collections.abc import Sequence

from penstock.core.caller import Caller
from penstock.errors import Invalid
from penstock.flight.context import FlightContext

Metadata = Sequence[tuple[str, str | bytes]]  # request headers of a gRPC call


async def authenticate_call(context: FlightContext, metadata: Metadata) -> Caller:
    """Return the caller that the authorization header of a call names."""
    headers = header_values(metadata, "authorization")
    caller = await context.authentication.authenticate(context.tokens, context.dev_caller, headers)
    context.tenants.add(caller.tenant)
    return caller


def header_values(metadata: Metadata, name: str) -> list[str]:
    """Return all values of a header."""
    return [str(value) for key, value in metadata if key == name]


def single_header(metadata: Metadata, name: str) -> str | None:
    """Return the value of a header that may occur at most once."""
    values = header_values(metadata, name)
    if len(values) > 1:
        raise Invalid("duplicate_header", {"name": name})
    return values[0] if values else None
