"""The application: routes, manners and errors, put together."""

from collections.abc import Callable

from fastapi import Depends, FastAPI, Response

from penstock.rest.routes import datasets
from penstock.rest.openapi import document as documents
from penstock.rest import problems as errors
from penstock.rest.routes import result_schemas as gts
from penstock.rest.routes import health
from penstock.rest.routes import me
from penstock.rest.routes import operations
from penstock.rest.routes import pipelines
from penstock.rest.routes import dataset_profile as profiles
from penstock.rest.routes import queries
from penstock.rest.routes import query_results as results
from penstock.rest.routes import runs
from penstock.rest.requests.query_params import known
from penstock.rest.context import Edge
from penstock.rest.middleware import Bounded, Observed
from penstock.rest.metrics import Metrics

ROUTERS = (
    gts.router,
    queries.router,
    results.router,
    datasets.router,
    profiles.router,
    operations.router,
    pipelines.router,
    runs.router,
    me.router,
    health.router,
    documents.router,
)
OPEN = (health.router, documents.router)  # to probes and browsers, which add to an address what they like


def application(edge: Edge, add: Callable[[FastAPI], None] = lambda _: None) -> FastAPI:
    """What a server serves. The workspace is the caller's, to open and to close. `add` may bring more to serve."""
    app = FastAPI(
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        default_response_class=Response,  # the document says of an answer what its route says, not that it might be JSON
    )
    for router in ROUTERS:
        app.include_router(router, dependencies=[] if router in OPEN else [Depends(known)])
    app.state.edge = edge
    app.state.metrics = Metrics(edge.runner, edge.results)
    app.state.routes = [route for router in ROUTERS for route in router.routes]
    errors.install(app)
    documents.install(app)
    add(app)
    app.add_middleware(Bounded, limits=edge.limits)
    app.add_middleware(Observed, metrics=app.state.metrics)  # the last one added sees a request first
    return app
