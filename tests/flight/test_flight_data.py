"""The FlightData codec agrees with protobuf byte for byte."""

import hypothesis.strategies as st
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given

from penstock.errors import Invalid
from penstock.flight import flight_data
from penstock.flight.flight_pb2 import FlightData, FlightDescriptor

PARTS = st.binary(max_size=300)
DESCRIPTORS = st.builds(
    lambda kind, cmd, path: FlightDescriptor(type=kind, cmd=cmd, path=path),
    st.sampled_from([0, 1, 2]),
    st.binary(max_size=20),
    st.lists(st.text(max_size=5), max_size=3),
)


def theirs(message: bytes) -> tuple[object, ...]:
    read = FlightData.FromString(message)
    descriptor = read.flight_descriptor if read.HasField("flight_descriptor") else None
    return descriptor, read.data_header, read.app_metadata, read.data_body


def ours(message: bytes) -> tuple[object, ...]:
    read = flight_data.decode(message)
    descriptor = None if read.descriptor is None else FlightDescriptor.FromString(read.descriptor)
    return descriptor, bytes(read.header), bytes(read.metadata), bytes(read.body)


@given(st.none() | DESCRIPTORS, PARTS, PARTS, PARTS)
def test_encode_matches_protobuf(
    descriptor: FlightDescriptor | None, header: bytes, metadata: bytes, body: bytes
) -> None:
    coded = None if descriptor is None else descriptor.SerializeToString()
    message = flight_data.encode(header, memoryview(body), descriptor=coded, metadata=metadata)
    expected = FlightData(
        flight_descriptor=descriptor, data_header=header, app_metadata=metadata, data_body=body
    ).SerializeToString()
    assert message == expected
    assert ours(message) == theirs(message) == (descriptor, header, metadata, body)


@given(st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 1000]), st.sampled_from([0, 1, 2, 5]), st.binary(max_size=10))))
def test_decode_reordered_repeated_and_unknown_fields_matches_protobuf(
    fields: list[tuple[int, int, bytes]],
) -> None:
    message = b"".join(_field(number, coded, value) for number, coded, value in fields)
    if sum(number == 1 and coded == 2 for number, coded, _ in fields) > 1:
        with pytest.raises(Invalid):  # what two descriptors mean is not guessed
            ours(message)
        return
    try:
        expected = theirs(message)
    except DecodeError:
        with pytest.raises((Invalid, DecodeError)):
            ours(message)
    else:
        assert ours(message) == expected


@given(st.binary(max_size=60))
def test_decode_rejects_bytes_that_protobuf_rejects(garbage: bytes) -> None:
    try:
        expected = theirs(garbage)
    except DecodeError:
        with pytest.raises((Invalid, DecodeError)):
            ours(garbage)
    else:
        try:
            assert ours(garbage) == expected
        except Invalid:
            assert _has_a_group(garbage) or garbage.count(b"\n") > 1  # no part of this protocol; two descriptors


def _field(number: int, coded: int, value: bytes) -> bytes:
    key = flight_data._varint(number << 3 | coded)
    match coded:
        case 0:
            return key + flight_data._varint(len(value))
        case 1:
            return key + value.ljust(8, b"x")[:8]
        case 5:
            return key + value.ljust(4, b"x")[:4]
    return key + flight_data._varint(len(value)) + value


def _has_a_group(message: bytes) -> bool:
    return any(byte & 7 in (3, 4) for byte in message)
