"""Dependencies and limits of the Flight server."""

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from penstock.core.caller import Caller
from penstock.errors import Invalid
from penstock.service.auth.async_authentication import AsyncAuthentication
from penstock.service.auth.tokens import TokenVerifier
from penstock.service.workspace import Workspace


@dataclass(frozen=True, slots=True)
class FlightLimits:
    message_bytes: int = 64 << 20  # size of one message, compressed or decompressed
    streams: int = 256  # concurrent calls
    puts: int = 32  # concurrent DoPut calls that are read; gRPC holds one message of each before it is reserved
    row_ids: int = 2_000_000  # row ids in one call
    metadata_bytes: int = 64 << 10  # request headers of one call
    threads: int = 32
    idle_seconds: float = 60.0  # longest pause between two messages of a client
    drain_seconds: float = 10.0  # time for active calls to finish when the server stops
    shared_port: bool = False  # other processes of the same server listen on the port, too


@dataclass(frozen=True, slots=True)
class CallStats:
    """Metrics of one finished call."""

    method: str
    code: str
    seconds: float
    rows_in: int
    rows_out: int


def _ignore_call(_stats: CallStats) -> None:
    pass


@dataclass(frozen=True, slots=True)
class FlightContext:
    workspace: Workspace
    tokens: TokenVerifier | None
    dev_caller: Caller | None = None  # caller of calls without a token; None: such calls are rejected
    limits: FlightLimits = field(default_factory=FlightLimits)
    tenants: set[UUID] = field(default_factory=set)  # tenants that this process has served
    on_call: Callable[[CallStats], None] = _ignore_call  # called after every call
    authentication: AsyncAuthentication = field(default_factory=AsyncAuthentication)

    def __post_init__(self) -> None:
        if self.tokens is None and self.dev_caller is None:
            raise Invalid("missing_token_key.flight")
