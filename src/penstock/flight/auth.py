"""Who makes this call? A caller, by the token in its one authorization header."""

from collections.abc import Sequence

from penstock.core.caller import Caller
from penstock.errors import Invalid
from penstock.flight.context import Edge
from penstock.flight.thread_pool import Work
from penstock.service.auth.tokens import bearer

Metadata = Sequence[tuple[str, str | bytes]]  # what a client sends before a call


async def caller(edge: Edge, work: Work, metadata: Metadata) -> Caller:
    """A secret takes no time; keys may have to be fetched."""
    asked = (edge.tokens, edge.dev, values(metadata, "authorization"))
    waits = edge.tokens is not None and edge.tokens.may_wait
    found = await work.run(bearer, *asked) if waits else bearer(*asked)
    edge.tenants.add(found.tenant)
    return found


def values(metadata: Metadata, name: str) -> list[str]:
    return [str(value) for key, value in metadata if key == name]


def one(metadata: Metadata, name: str) -> str | None:
    found = values(metadata, name)
    if len(found) > 1:
        raise Invalid("doubled_header", f"there is more than one {name} header; send one")
    return found[0] if found else None
