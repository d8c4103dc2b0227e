"""What the Flight edge stands on: a workspace, who may call, and what one call may cost."""

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from penstock.core.caller import Caller
from penstock.errors import Invalid
from penstock.service.auth.tokens import Tokens
from penstock.service.workspace import Workspace


@dataclass(frozen=True, slots=True)
class FlightLimits:
    message_bytes: int = 256 << 20  # of one message, packed or not
    streams: int = 256  # calls at once
    row_ids: int = 2_000_000  # in one call
    metadata_bytes: int = 64 << 10  # of what goes before a call
    threads: int = 32
    idle_seconds: float = 300.0  # that a client may take to send its next message
    drain_seconds: float = 10.0  # that calls under way have when the server stops

    @property
    def of_tenant(self) -> int:
        """Calls of one tenant at once: three quarters, so that others always find a place."""
        return self.streams - self.streams // 4


@dataclass(frozen=True, slots=True)
class Ended:
    """A call that is over, for the metrics."""

    method: str
    code: str
    seconds: float
    rows_in: int
    rows_out: int


def _nobody(_ended: Ended) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Edge:
    workspace: Workspace
    tokens: Tokens | None
    dev: Caller | None = None  # who calls without a token; None: nobody does
    limits: FlightLimits = field(default_factory=FlightLimits)
    tenants: set[UUID] = field(default_factory=set)  # that this process has served
    heard: Callable[[Ended], None] = _nobody  # who counts calls

    def __post_init__(self) -> None:
        if self.tokens is None and self.dev is None:
            raise Invalid(
                "no_token_key", "an edge that nobody could enter: it needs keys for tokens, or a local caller"
            )
