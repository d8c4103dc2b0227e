"""Mutate valid DoPut streams: cut, repeat, reorder and flip bits."""

import random
from collections import Counter
from collections.abc import Callable, Sequence

from flight.raw_client import CallRejected, RawClient

EXPECTED_CODES = {
    "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "NOT_FOUND", "FAILED_PRECONDITION", "ALREADY_EXISTS",
}  # fmt: skip

Stream = list[bytes]


def fuzz(raw_client: RawClient, valid_streams: Sequence[Stream], rounds: int, seed: int = 1) -> Counter[str]:
    """Send mutated streams and count the outcomes."""
    rng, outcomes = random.Random(seed), Counter[str]()
    for round_no in range(rounds):
        stream = list(rng.choice(valid_streams))
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            stream = rng.choice(MUTATIONS)(rng, stream)
        error = _put_error(raw_client, stream)
        if error:
            assert error.code in EXPECTED_CODES, (seed, round_no, error)
            assert error.reason, (seed, round_no, error)
        outcomes[error.code if error else "OK"] += 1
    return outcomes


def _put_error(raw_client: RawClient, stream: Stream) -> CallRejected | None:
    try:
        raw_client.put(stream)
    except CallRejected as error:
        return error
    return None


def _flip(rng: random.Random, stream: Stream) -> Stream:
    """Flip bits of one message, mostly near its beginning, which has the lengths and offsets."""
    if not stream:
        return stream
    index = rng.randrange(len(stream))
    message = bytearray(stream[index])
    end = len(message) if rng.random() < 0.4 else min(len(message), 600)
    for _ in range(rng.choice((1, 1, 2, 8)) if end else 0):
        message[rng.randrange(end)] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
    return [*stream[:index], bytes(message), *stream[index + 1 :]]


def _overwrite(rng: random.Random, stream: Stream) -> Stream:
    """Set a 4- or 8-byte number to an extreme value."""
    if not stream:
        return stream
    index = rng.randrange(len(stream))
    message = bytearray(stream[index])
    size = rng.choice((4, 8))
    if len(message) >= size:
        offset = rng.randrange(len(message) - size + 1)
        number = rng.choice((-1, 0, 1, 1 << 20, (1 << 31) - 1, -(1 << 31), (1 << 62) - 1))
        message[offset : offset + size] = (number % (1 << 8 * size)).to_bytes(size, "little")
    return [*stream[:index], bytes(message), *stream[index + 1 :]]


def _cut(rng: random.Random, stream: Stream) -> Stream:
    if not stream:
        return stream
    index = rng.randrange(len(stream))
    return [*stream[:index], stream[index][: rng.randrange(len(stream[index]) + 1)], *stream[index + 1 :]]


def _drop(rng: random.Random, stream: Stream) -> Stream:
    index = rng.randrange(len(stream) + 1)
    return stream[:index] + stream[index + 1 :]


def _repeat(rng: random.Random, stream: Stream) -> Stream:
    index = rng.randrange(len(stream) + 1)
    return stream[:index] + stream[index : index + 1] * 2 + stream[index + 1 :]


def _shuffle(rng: random.Random, stream: Stream) -> Stream:
    return rng.sample(stream, len(stream))


def _garbage(rng: random.Random, stream: Stream) -> Stream:
    index = rng.randrange(len(stream) + 1)
    return [*stream[:index], rng.randbytes(rng.choice((0, 1, 10, 1_000))), *stream[index:]]


def _splice(rng: random.Random, stream: Stream) -> Stream:
    """Join the beginning of one message and the end of another."""
    if not stream:
        return stream
    one, other = rng.choice(stream), rng.choice(stream)
    index = rng.randrange(len(stream))
    mixed = one[: rng.randrange(len(one) + 1)] + other[rng.randrange(len(other) + 1) :]
    return [*stream[:index], mixed, *stream[index + 1 :]]


MUTATIONS: tuple[Callable[[random.Random, Stream], Stream], ...] = (
    _flip, _flip, _flip, _overwrite, _overwrite, _overwrite, _cut, _drop, _repeat, _shuffle, _garbage, _splice,
)  # fmt: skip
