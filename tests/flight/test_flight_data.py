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
    lambda descriptor_type, cmd, path: FlightDescriptor(type=descriptor_type, cmd=cmd, path=path),
    st.sampled_from([0, 1, 2]),
    st.binary(max_size=20),
    st.lists(st.text(max_size=5), max_size=3),
)


def decode_with_protobuf(message: bytes) -> tuple[object, ...]:
    decoded = FlightData.FromString(message)
    descriptor = decoded.flight_descriptor if decoded.HasField("flight_descriptor") else None
    return descriptor, decoded.data_header, decoded.app_metadata, decoded.data_body


def decode_with_penstock(message: bytes) -> tuple[object, ...]:
    decoded = flight_data.decode(message)
    descriptor = None if decoded.descriptor is None else FlightDescriptor.FromString(decoded.descriptor)
    return descriptor, bytes(decoded.header), bytes(decoded.metadata), bytes(decoded.body)


@given(st.none() | DESCRIPTORS, PARTS, PARTS, PARTS)
def test_encode_matches_protobuf(
    descriptor: FlightDescriptor | None, header: bytes, metadata: bytes, body: bytes
) -> None:
    encoded_descriptor = None if descriptor is None else descriptor.SerializeToString()
    message = flight_data.encode(header, memoryview(body), descriptor=encoded_descriptor, metadata=metadata)
    expected = FlightData(
        flight_descriptor=descriptor, data_header=header, app_metadata=metadata, data_body=body
    ).SerializeToString()
    assert message == expected
    assert decode_with_penstock(message) == decode_with_protobuf(message) == (descriptor, header, metadata, body)


@given(st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 1000]), st.sampled_from([0, 1, 2, 5]), st.binary(max_size=10))))
def test_decode_reordered_repeated_and_unknown_fields_matches_protobuf(
    fields: list[tuple[int, int, bytes]],
) -> None:
    message = b"".join(_field(number, wire_type, value) for number, wire_type, value in fields)
    if sum(number == 1 and wire_type == 2 for number, wire_type, _ in fields) > 1:
        with pytest.raises(Invalid):  # two descriptors are ambiguous
            decode_with_penstock(message)
        return
    try:
        expected = decode_with_protobuf(message)
    except DecodeError:
        with pytest.raises((Invalid, DecodeError)):
            decode_with_penstock(message)
    else:
        assert decode_with_penstock(message) == expected


@given(st.binary(max_size=60))
def test_decode_rejects_bytes_that_protobuf_rejects(message: bytes) -> None:
    try:
        expected = decode_with_protobuf(message)
    except DecodeError:
        with pytest.raises((Invalid, DecodeError)):
            decode_with_penstock(message)
    else:
        try:
            assert decode_with_penstock(message) == expected
        except Invalid:
            assert (
                _has_a_group(message) or message.count(b"\n") > 1
            )  # groups are not in this protocol; two descriptors are ambiguous


def _field(number: int, wire_type: int, value: bytes) -> bytes:
    key = flight_data._varint(number << 3 | wire_type)
    match wire_type:
        case 0:
            return key + flight_data._varint(len(value))
        case 1:
            return key + value.ljust(8, b"x")[:8]
        case 5:
            return key + value.ljust(4, b"x")[:4]
    return key + flight_data._varint(len(value)) + value


def _has_a_group(message: bytes) -> bool:
    return any(byte & 7 in (3, 4) for byte in message)
