"""Share the compiled REST routes between the applications of a process.

FastAPI inspects the parameters and dependencies of all routes again for each application. A test creates a new application, so without
this module that inspection takes longer than most tests of a route.
"""

from typing import Any

from fastapi import routing
from starlette.routing import BaseRoute

from penstock.rest.app import ROUTERS

_compile = routing._IncludedRouter._build_effective_context
_compiled: dict[tuple[int, int], Any] = {}  # by route and number of added dependencies: none or all
_routes = {id(route): route for router in ROUTERS for route in router.routes}


def share() -> None:
    """Let every application that this process creates use the compiled routes of the first one."""
    routing._IncludedRouter._build_effective_context = _compile_once


def _compile_once(included: Any, route: BaseRoute) -> Any:
    if id(route) not in _routes:
        return _compile(included, route)
    key = id(route), len(included.include_context.dependencies)
    if key not in _compiled:
        _compiled[key] = _compile(included, route)
    return _compiled[key]
