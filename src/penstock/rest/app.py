"""Assemble the REST application: routes, middleware and error handlers."""

from collections.abc import Callable, Iterator, Sequence

from fastapi import Depends, FastAPI, Request, Response, params
from fastapi.routing import APIRoute

from penstock.errors import NotFound
from penstock.rest import problems
from penstock.rest.context import RestContext
from penstock.rest.dispatcher import Dispatcher
from penstock.rest.metrics import Metrics
from penstock.rest.middleware import AccessLogMiddleware, LimitsMiddleware
from penstock.rest.odata_route import check_odata_version
from penstock.rest.openapi import document as openapi_document
from penstock.rest.requests.content_negotiation import require_acceptable
from penstock.rest.requests.query_params import reject_unknown_params
from penstock.rest.routes import (
    api_docs,
    dataset_profile,
    datasets,
    health,
    me,
    operations,
    pipelines,
    queries,
    query_executions,
    query_results,
    result_schemas,
    runs,
    service_root,
)

ROUTERS = (
    result_schemas.router,
    query_executions.router,  # before the queries: their ids and names match any path segment
    queries.router,
    query_results.router,
    datasets.router,
    dataset_profile.router,
    operations.router,
    pipelines.router,
    runs.router,
    service_root.router,
    me.router,
    health.router,
    api_docs.router,
)
PUBLIC_ROUTERS = (
    health.router,
    api_docs.router,
)  # unknown query parameters are ignored: probes and browsers add their own
_DEPENDENCIES = [Depends(reject_unknown_params), Depends(require_acceptable), Depends(check_odata_version)]


def _routes_with_dependencies() -> Iterator[tuple[APIRoute, Sequence[params.Depends]]]:
    for router in ROUTERS:
        for route in router.routes:
            assert isinstance(route, APIRoute)
            yield route, () if router in PUBLIC_ROUTERS else _DEPENDENCIES


async def _reject_undispatched(request: Request) -> None:
    """Reject a path that the dispatcher does not serve, although the framework finds a route for it ("/me%0A")."""
    raise NotFound("route_not_found", {"path": request.url.path})


def create_app(context: RestContext, extend: Callable[[FastAPI], None] = lambda _: None) -> FastAPI:
    """Create the ASGI application.

    Args:
        context: the services that the routes call; its owner opens and closes the workspace
        extend: adds further routes, such as the web UI
    """
    app = FastAPI(
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        default_response_class=Response,  # keeps the framework from documenting a JSON body for every response
    )
    for router in ROUTERS:
        # For the documentation, and for unknown paths and methods: the dispatcher serves all others.
        app.include_router(router, dependencies=[Depends(_reject_undispatched)])
    app.state.context = context
    app.state.metrics = Metrics(context.run_worker, context.query_executor, context.executor, context.workspace.memory)
    app.state.probes = health.Probes()
    app.state.routes = [route for router in ROUTERS for route in router.routes]
    app.state.dispatched_routes = list(_routes_with_dependencies())
    app.add_middleware(Dispatcher, routes=app.state.dispatched_routes)
    problems.install(app)
    openapi_document.install(app)
    extend(app)
    app.add_middleware(LimitsMiddleware, limits=context.limits)
    app.add_middleware(AccessLogMiddleware, metrics=app.state.metrics)  # added last, so it is the outermost one
    return app
