"""A TCP load balancer for tests."""

import itertools
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

_PIECE = 1 << 16


@contextmanager
def balanced(backends: Sequence[tuple[str, int]]) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as location:
        turn = itertools.count()
        threading.Thread(target=_accept, args=(location, backends, turn), daemon=True).start()
        yield f"http://127.0.0.1:{location.getsockname()[1]}"
        location.shutdown(socket.SHUT_RDWR)


def _accept(location: socket.socket, backends: Sequence[tuple[str, int]], turn: Iterator[int]) -> None:
    with suppress(OSError):
        while True:
            client, _ = location.accept()
            threading.Thread(target=_serve, args=(client, backends, next(turn)), daemon=True).start()


def _serve(client: socket.socket, backends: Sequence[tuple[str, int]], first: int) -> None:
    with client:
        for location in range(len(backends)):
            with suppress(OSError), socket.create_connection(backends[(first + location) % len(backends)]) as server:
                responses = threading.Thread(target=_pass_on, args=(server, client), daemon=True)
                responses.start()
                _pass_on(client, server)
                responses.join()
                return


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(_PIECE):
            sink.sendall(piece)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
