"""Dependencies and limits of the REST server."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self
from uuid import UUID

from fastapi import Request

from penstock.core.caller import Caller
from penstock.core.payload import json_cost
from penstock.errors import Invalid
from penstock.rest.process_group import ProcessGroup
from penstock.rest.route_execution import RouteExecutor
from penstock.service.auth.async_authentication import AsyncAuthentication
from penstock.service.auth.tokens import TokenVerifier
from penstock.service.pipelines.run_worker import RunWorker
from penstock.service.queries.execution import QueryExecutor
from penstock.service.workspace import Workspace


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Sizes and times that one request or connection may take."""

    max_url_bytes: int = 16 << 10  # path and query string
    max_header_bytes: int = 64 << 10  # request line and headers
    max_json_bytes: int = 4 << 20  # JSON bodies
    max_json_values: int = json_cost.MAX_VALUES  # in a JSON body
    max_upload_bytes: int = 16 << 30  # all other bodies
    response_timeout_seconds: float = 60.0  # from the last part of the body to the start of the response
    idle_timeout_seconds: int = 15  # of a connection between two requests
    header_timeout_seconds: float = 20.0  # for a client to send the request line and headers
    drain_seconds: int = 10  # for active requests to finish when the server stops


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class RestContext:
    """The services that the routes call. `RestContext.create` fills in the defaults."""

    workspace: Workspace
    tokens: TokenVerifier | None
    run_worker: RunWorker  # closed by the owner of the server
    query_executor: QueryExecutor  # closed by the owner of the server
    dev_caller: Caller | None = None  # caller of requests without a token; None: a token is required
    limits: HttpLimits = field(default_factory=HttpLimits)
    clock: Callable[[], datetime] = _utc_now
    archive_after_days: int = 90  # from the deprecation of a result schema to its archiving
    tenants: set[UUID] = field(default_factory=set)  # tenants that this process has served
    executor: RouteExecutor = field(default_factory=RouteExecutor)  # runs the routes in threads
    group: ProcessGroup | None = None  # of the processes that serve together with this one
    authentication: AsyncAuthentication = field(default_factory=AsyncAuthentication)

    @classmethod
    def create(
        cls,
        workspace: Workspace,
        tokens: TokenVerifier | None,
        dev_caller: Caller | None = None,
        limits: HttpLimits | None = None,
        *,
        archive_after_days: int = 90,
        tenants: set[UUID] | None = None,
        run_worker: RunWorker | None = None,
        query_executor: QueryExecutor | None = None,
        group: ProcessGroup | None = None,
    ) -> Self:
        """Create a context, with a new run worker and a new query executor unless they are passed.

        Raises:
            Invalid: neither `tokens` nor `dev_caller` is set, so that no request could be authenticated
        """
        if tokens is None and dev_caller is None:
            raise Invalid("missing_token_key.rest")
        return cls(
            workspace,
            tokens,
            run_worker or RunWorker(workspace),
            query_executor or QueryExecutor(workspace),
            dev_caller,
            limits or HttpLimits(),
            archive_after_days=archive_after_days,
            tenants=set() if tenants is None else tenants,
            group=group,
        )


def context_of(request: Request) -> RestContext:
    """Return the context of the application that serves a request."""
    context: RestContext = request.app.state.context
    return context
