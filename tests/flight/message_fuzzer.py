"""Mutate valid DoPut streams: cut, repeat, reorder and flip bits."""

import random
from collections import Counter
from collections.abc import Callable, Sequence

from flight.raw_client import Raw, Refused

EXPECTED_CODES = {
    "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "NOT_FOUND", "FAILED_PRECONDITION", "ALREADY_EXISTS",
}  # fmt: skip

Stream = list[bytes]


def fuzz(raw: Raw, sound: Sequence[Stream], rounds: int, seed: int = 1) -> Counter[str]:
    """Send mutated streams; each is served, or refused in a way that is known. The answer tells how often which."""
    chance, response = random.Random(seed), Counter[str]()
    for workspace in range(rounds):
        stream = list(chance.choice(sound))
        for _ in range(chance.choice((1, 1, 1, 2, 5))):
            stream = chance.choice(MUTATIONS)(chance, stream)
        raised = _put_error(raw, stream)
        if raised:
            assert raised.code in EXPECTED_CODES, (seed, workspace, raised)
            assert raised.reason, (seed, workspace, raised)
        response[raised.code if raised else "OK"] += 1
    return response


def _put_error(raw: Raw, stream: Stream) -> Refused | None:
    try:
        raw.put(stream)
    except Refused as error:
        return error
    return None


def _flip(chance: random.Random, stream: Stream) -> Stream:
    """Some bytes of one message become others; often in its head, where it says how it is to be read."""
    if not stream:
        return stream
    at = chance.randrange(len(stream))
    message = bytearray(stream[at])
    end = len(message) if chance.random() < 0.4 else min(len(message), 600)
    for _ in range(chance.choice((1, 1, 2, 8)) if end else 0):
        message[chance.randrange(end)] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
    return [*stream[:at], bytes(message), *stream[at + 1 :]]


def _overwrite(chance: random.Random, stream: Stream) -> Stream:
    """A number of four or eight bytes becomes an extreme one: a length, an offset, a count."""
    if not stream:
        return stream
    at = chance.randrange(len(stream))
    message = bytearray(stream[at])
    size = chance.choice((4, 8))
    if len(message) >= size:
        workspace = chance.randrange(len(message) - size + 1)
        number = chance.choice((-1, 0, 1, 1 << 20, (1 << 31) - 1, -(1 << 31), (1 << 62) - 1))
        message[workspace : workspace + size] = (number % (1 << 8 * size)).to_bytes(size, "little")
    return [*stream[:at], bytes(message), *stream[at + 1 :]]


def _cut(chance: random.Random, stream: Stream) -> Stream:
    if not stream:
        return stream
    at = chance.randrange(len(stream))
    return [*stream[:at], stream[at][: chance.randrange(len(stream[at]) + 1)], *stream[at + 1 :]]


def _drop(chance: random.Random, stream: Stream) -> Stream:
    at = chance.randrange(len(stream) + 1)
    return stream[:at] + stream[at + 1 :]


def _double(chance: random.Random, stream: Stream) -> Stream:
    at = chance.randrange(len(stream) + 1)
    return stream[:at] + stream[at : at + 1] * 2 + stream[at + 1 :]


def _mix(chance: random.Random, stream: Stream) -> Stream:
    return chance.sample(stream, len(stream))


def _garbage(chance: random.Random, stream: Stream) -> Stream:
    at = chance.randrange(len(stream) + 1)
    return [*stream[:at], chance.randbytes(chance.choice((0, 1, 10, 1_000))), *stream[at:]]


def _splice(chance: random.Random, stream: Stream) -> Stream:
    """The beginning of one message, and the end of another."""
    if not stream:
        return stream
    one, other = chance.choice(stream), chance.choice(stream)
    at = chance.randrange(len(stream))
    mixed = one[: chance.randrange(len(one) + 1)] + other[chance.randrange(len(other) + 1) :]
    return [*stream[:at], mixed, *stream[at + 1 :]]


MUTATIONS: tuple[Callable[[random.Random, Stream], Stream], ...] = (
    _flip, _flip, _flip, _overwrite, _overwrite, _overwrite, _cut, _drop, _double, _mix, _garbage, _splice,
)  # fmt: skip
