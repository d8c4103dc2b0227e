"""Test the transport that sends the head and the body of a small response together."""

import asyncio
from collections.abc import Callable
from typing import Any

from penstock.rest.buffered_transport import BufferedTransport


def written_parts(write: Callable[[BufferedTransport], Any]) -> list[bytes]:
    """Return what the transport sends, one item for each system call, when `write` runs in one step of the loop."""
    parts: list[bytes] = []

    class Recorder(asyncio.Transport):
        def write(self, data: Any) -> None:
            parts.append(bytes(data))

        def close(self) -> None:
            parts.append(b"closed")

        def get_write_buffer_size(self) -> int:
            return 0

        def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ARG002
            return f"extra {name}"

    async def run() -> None:
        write(BufferedTransport(Recorder(), asyncio.get_running_loop(), 60.0))
        await asyncio.sleep(0)

    asyncio.run(run())
    return parts


def test_small_parts_of_one_step_are_sent_together() -> None:
    assert written_parts(lambda transport: (transport.write(b"head "), transport.write(b"body"))) == [b"head body"]


def test_large_parts_are_not_collected() -> None:
    large = b"x" * (1 << 20)
    parts = written_parts(lambda transport: [transport.write(part) for part in (b"head ", large, large)])
    assert list(map(len, parts)) == [5 + len(large), len(large)]


def test_close_sends_buffered_data_first() -> None:
    assert written_parts(lambda transport: (transport.write(b"last"), transport.close())) == [b"last", b"closed"]


def test_other_methods_delegate_to_the_transport() -> None:
    assert written_parts(lambda transport: transport.write(transport.get_extra_info("peer").encode())) == [
        b"extra peer"
    ]
