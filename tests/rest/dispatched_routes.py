"""Add routes to an application in tests. The dispatcher serves them like the routes of the API."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, FastAPI

from penstock.rest.route_execution import Lane, in_lane


def add_route(
    app: FastAPI, path: str, endpoint: Callable[..., Any], *, lane: Lane | None = None, method: str = "GET"
) -> None:
    """Add a route before the first request of the application.

    Args:
        lane: the lane in which the function runs; it then takes `request` and `caller`
    """
    router = APIRouter() if lane is None else APIRouter(route_class=in_lane(lane))
    router.add_api_route(path, endpoint, methods=[method], response_model=None)
    app.state.dispatched_routes.append((router.routes[0], ()))
    app.state.routes.append(router.routes[0])
