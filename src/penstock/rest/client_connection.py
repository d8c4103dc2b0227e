"""The connection of a request's client: wait for its end, or abort it.

The server and the middleware store their functions in the ASGI scope. Without them, as in an in-process client, the
messages of `receive` tell when the client disconnects.
"""

from collections.abc import Awaitable, Callable

from starlette.types import Message, Receive, Scope

WAIT_KEY = "penstock.wait_for_disconnect"
ABORT_KEY = "penstock.abort_connection"


async def wait_for_disconnect(scope: Scope, receive: Receive) -> None:
    """Return when the client has disconnected. The body must have been received before; the rest of it is discarded."""
    wait: Callable[[], Awaitable[None]] | None = scope.get(WAIT_KEY)
    if wait:
        await wait()
        return
    while (await receive())["type"] != "http.disconnect":
        pass


def disconnect_receiver(scope: Scope, receive: Receive) -> Receive:
    """Return a `receive` for a response, which only waits for the end of the connection."""

    async def receive_disconnect() -> Message:
        await wait_for_disconnect(scope, receive)
        return {"type": "http.disconnect"}

    return receive_disconnect


async def abort(scope: Scope, receive: Receive) -> None:
    """Close the connection without sending what it buffers, and wait until the server has noticed."""
    abort_connection: Callable[[], None] | None = scope.get(ABORT_KEY)
    if abort_connection:
        abort_connection()
        while (await receive())["type"] != "http.disconnect":
            pass
