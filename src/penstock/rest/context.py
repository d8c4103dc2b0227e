"""What the HTTP edge stands on: a workspace, who may call, and what one request may cost."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

from fastapi import Request

from penstock.core.caller import Caller
from penstock.errors import Invalid
from penstock.service.queries.execution import Results
from penstock.service.pipelines.run_worker import Runner
from penstock.service.auth.tokens import Tokens
from penstock.service.workspace import Workspace


@dataclass(frozen=True, slots=True)
class HttpLimits:
    url_bytes: int = 16 << 10  # of a path and its query
    header_bytes: int = 64 << 10  # of a request's first line and headers
    json_bytes: int = 4 << 20  # of a body in JSON
    upload_bytes: int = 16 << 30  # of any other body
    answer_seconds: float = 60.0  # from the last piece of the body until the answer begins
    idle_seconds: int = 15  # that a connection may rest between two requests
    header_seconds: float = 20.0  # that a client may take to say what it wants
    drain_seconds: int = 10  # that requests under way have when the server stops


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Edge:
    workspace: Workspace
    tokens: Tokens | None
    dev: Caller | None = None  # who calls without a token; None: nobody does
    limits: HttpLimits = field(default_factory=HttpLimits)
    clock: Callable[[], datetime] = _now
    archive_after_days: int = 90  # a deprecated schema is archived then
    tenants: set[UUID] = field(default_factory=set)  # that this process has served
    runner: Runner = None  # type: ignore[assignment]  # of pipelines, the caller's to close; one of its own unless given
    results: Results = None  # type: ignore[assignment]  # of queries; as the runner

    def __post_init__(self) -> None:
        if self.tokens is None and self.dev is None:
            raise Invalid(
                "no_token_key", "an edge that nobody could enter: it needs keys for tokens, or a local caller"
            )
        if not self.runner:
            object.__setattr__(self, "runner", Runner(self.workspace))
        if not self.results:
            object.__setattr__(self, "results", Results(self.workspace))


def edge_of(request: Request) -> Edge:
    edge: Edge = request.app.state.edge
    return edge
