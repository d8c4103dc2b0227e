"""Dispatch requests to the functions of the API routes.

The routes are declared with FastAPI, which documents them. Their requests do not pass through it: the dispatcher looks
up the route by the first segment of the path, and calls its function and its dependencies directly. That takes a
fraction of the time of FastAPI's general lookup and resolution.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.params import Depends
from fastapi.routing import APIRoute
from starlette.convertors import StringConvertor
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.errors import PenstockError
from penstock.rest import client_connection, problems

Handler = Callable[[Request], Awaitable[Response]]

_RESOURCES = "penstock.resources"  # key of the scope: an AsyncExitStack


class Dispatcher:
    """ASGI middleware that serves the API routes. All other requests pass to the application behind it.

    Args:
        app: the application behind, which rejects unknown paths and methods; it must not execute the routes itself
        routes: the API routes, each with the dependencies that run before its own
    """

    def __init__(self, app: ASGIApp, routes: Iterable[tuple[APIRoute, Sequence[Depends]]]) -> None:
        self._app = app
        self._routes: dict[str, list[tuple[APIRoute, Handler]]] = {}  # by the first segment of the path
        for route, dependencies in routes:
            first = _first_segment(route.path)
            assert "{" not in first, f"the first segment of {route.path} must be a literal"
            self._routes.setdefault(first, []).append((route, _build_handler(route, dependencies)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope.get("root_path"):
            path, method = scope["path"], scope["method"]
            for route, handle in self._routes.get(_first_segment(path), ()):
                if method in (route.methods or ()) and (match := route.path_regex.match(path)):
                    scope["route"], scope["path_params"] = route, match.groupdict()
                    await _respond(handle, scope, receive, send)
                    return
        await self._app(scope, receive, send)


def _first_segment(path: str) -> str:
    return path[1:].partition("/")[0]


async def _respond(handle: Handler, scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive, send)
    try:
        try:
            response = await handle(request)
        except PenstockError as error:
            response = problems.problem_response(problems.redact(error), request.url.path)
        await response(scope, client_connection.disconnect_receiver(scope, receive), send)
    finally:
        if resources := scope.get(_RESOURCES):  # released after the response is sent
            await resources.aclose()


def _build_handler(route: APIRoute, dependencies: Sequence[Depends]) -> Handler:
    """Return a function that calls the dependencies of a route in order, and then its function."""
    steps = _Steps()
    for dependency in (*dependencies, *route.dependencies):
        assert dependency.dependency is not None
        steps.add(dependency.dependency)
    endpoint = steps.build_step(route.endpoint)
    for name in {name for step in (*steps.steps, endpoint) for name in step.path_parameters}:
        converter = route.param_convertors.get(name)
        assert type(converter) is StringConvertor, f"{name} is not a text parameter of {route.path}"

    async def handle(request: Request) -> Response:
        values: dict[Callable[..., Any], Any] = {}
        for step in steps.steps:
            values[step.function] = await step.call(request, values)
        response = await endpoint.call(request, values)
        assert isinstance(response, Response), f"{route.path} did not return a response"
        return response

    wrap: Callable[[Handler], Handler] | None = getattr(route, "wrap_handler", None)
    return wrap(handle) if wrap else handle


@dataclass(frozen=True, slots=True)
class _Step:
    """A call of a dependency or of the function of a route."""

    function: Callable[..., Any]
    request_parameter: str | None
    path_parameters: tuple[str, ...]
    dependencies: Mapping[str, Callable[..., Any]]  # by parameter
    run: Callable[..., Awaitable[Any]]  # the function, if it is a coroutine function
    open: Callable[..., AbstractAsyncContextManager[Any]] | None  # for a dependency that releases its value later

    async def call(self, request: Request, values: Mapping[Callable[..., Any], Any]) -> Any:
        arguments = {name: values[dependency] for name, dependency in self.dependencies.items()}
        if self.request_parameter:
            arguments[self.request_parameter] = request
        for name in self.path_parameters:
            arguments[name] = request.scope["path_params"][name]
        if self.open is None:
            return await self.run(**arguments)
        resources = request.scope.setdefault(_RESOURCES, AsyncExitStack())
        return await resources.enter_async_context(self.open(**arguments))


class _Steps:
    """The dependencies of a route, each once, in the order of their calls."""

    def __init__(self) -> None:
        self.steps: list[_Step] = []
        self._added: set[Callable[..., Any]] = set()

    def add(self, function: Callable[..., Any]) -> None:
        """Add a dependency after the dependencies of its own."""
        if function not in self._added:
            step = self.build_step(function)
            self._added.add(function)
            self.steps.append(step)

    def build_step(self, function: Callable[..., Any]) -> _Step:
        """Return the call of a function, and add its dependencies."""
        request_parameter, path_parameters = None, []
        dependencies: dict[str, Callable[..., Any]] = {}
        for name, annotation in _parameters(function).items():
            dependency = _dependency(annotation)
            if dependency is not None:
                self.add(dependency)
                dependencies[name] = dependency
            elif annotation is Request:
                request_parameter = name
            else:
                base = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
                assert base is str, f"the dispatcher cannot pass {name}: {annotation} to {function}"
                path_parameters.append(name)
        assert not inspect.isgeneratorfunction(function), f"{function} must be an async generator"
        return _Step(
            function,
            request_parameter,
            tuple(path_parameters),
            dependencies,
            _as_coroutine_function(function),
            asynccontextmanager(function) if inspect.isasyncgenfunction(function) else None,
        )


def _parameters(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of the parameters of a function, or of the function that it wraps."""
    unwrapped = inspect.unwrap(function)
    hints = get_type_hints(unwrapped, include_extras=True)
    return {name: hints[name] for name in inspect.signature(unwrapped).parameters}


def _dependency(annotation: Any) -> Callable[..., Any] | None:
    if get_origin(annotation) is not Annotated:
        return None
    found = [extra for extra in get_args(annotation)[1:] if isinstance(extra, Depends)]
    return found[0].dependency if found else None


def _as_coroutine_function(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return function

    async def run(**arguments: Any) -> Any:
        return await run_in_threadpool(function, **arguments)

    return run
