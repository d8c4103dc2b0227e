"""The fault proxy of the tests, with a real client: each kind of request is counted and fails as injected."""

import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from itertools import count

import obstore
import pytest
from obstore.exceptions import GenericError, PermissionDeniedError
from obstore.store import S3Store
from pyarrow.fs import S3FileSystem

from support.fault_proxy import Fault, FaultProxy, applicable_kinds
from support.s3_client import S3Client
from support.s3_requests import Kind
from support.s3_server import S3Server

MIB = 1 << 20
KINDS: dict[Kind, Callable[[S3Store], object]] = {
    Kind.PUT: lambda store: obstore.put(store, "new", b"abc"),
    Kind.GET: lambda store: obstore.get(store, "old").bytes(),
    Kind.HEAD: lambda store: obstore.head(store, "old"),
    Kind.LIST: lambda store: obstore.list(store).collect(),
    Kind.DELETE_MANY: lambda store: obstore.delete(store, "old"),  # obstore has no request for one object
    Kind.COPY: lambda store: obstore.copy(store, "old", "copy"),
    Kind.PUT_PART: lambda store: obstore.put(store, "large", b"x" * 11 * MIB, use_multipart=True, max_concurrency=1),
}
SILENT = {Fault.WRONG_BYTES, Fault.SHORT_LISTING, Fault.STALE_LISTING}  # the client receives a valid response
RETRIED = {
    Fault.TOO_MANY_REQUESTS,
    Fault.INTERNAL_ERROR,
    Fault.SLOW_DOWN,
    Fault.RESET,
    Fault.LOST_REPLY,
    Fault.CUT_BODY,
}
NOT_RETRIED = {(Fault.RESET, Kind.DELETE_MANY)}  # obstore 0.12 retries a POST only after a response


def _cases(faults: Iterable[Fault]) -> list[tuple[Fault, Kind]]:
    return [(fault, kind) for fault in Fault if fault in faults for kind in KINDS if kind in applicable_kinds(fault)]


class Stores:
    """Stores behind the proxy and a client that reaches the server directly."""

    def __init__(self, server: S3Server, bucket: str, proxy: FaultProxy) -> None:
        self.direct, self.bucket, self._proxy, self._server = server.client, bucket, proxy, server

    def store(self, retries: int = 2, timeout_seconds: float = 60) -> S3Store:
        return S3Store(
            self.bucket,
            endpoint=self._proxy.endpoint,
            access_key_id=self._server.access_key,
            secret_access_key=self._server.secret_key,
            region="us-east-1",
            virtual_hosted_style_request=False,
            client_options={"allow_http": True, "timeout": timedelta(seconds=timeout_seconds)},
            retry_config={
                "max_retries": retries,
                "retry_timeout": timedelta(seconds=60),
                "backoff": {
                    "init_backoff": timedelta(milliseconds=1),
                    "max_backoff": timedelta(milliseconds=2),
                    "base": 2,
                },
            },
        )


@pytest.fixture
def stores(s3_server: S3Server, bucket: str, fault_proxy: FaultProxy) -> Stores:
    for key in ("old", "other"):
        s3_server.client.put(bucket, key, b"content")
    return Stores(s3_server, bucket, fault_proxy)


@pytest.mark.parametrize("kind", KINDS)
def test_counts_contain_exactly_the_requests_of_the_client(stores: Stores, fault_proxy: FaultProxy, kind: Kind) -> None:
    KINDS[kind](stores.store())
    expected = (
        {Kind.CREATE_UPLOAD: 1, Kind.PUT_PART: 3, Kind.COMPLETE_UPLOAD: 1} if kind is Kind.PUT_PART else {kind: 1}
    )
    assert fault_proxy.counts() == expected


def test_counts_name_the_kinds_that_obstore_does_not_send(
    s3_server: S3Server, bucket: str, fault_proxy: FaultProxy
) -> None:
    client = S3Client(fault_proxy.endpoint, s3_server.access_key, s3_server.secret_key)
    client.create_bucket(f"{bucket}-2")
    client.put(bucket, "key", b"")
    client.delete(bucket, "key")
    upload = (
        client.request("POST", f"/{bucket}/key", {"uploads": ""}).decode().partition("<UploadId>")[2].partition("<")[0]
    )
    assert client.uploads(bucket) == ["key"]
    client.request("DELETE", f"/{bucket}/key", {"uploadId": upload})
    kinds = [Kind.OTHER, Kind.PUT, Kind.DELETE, Kind.CREATE_UPLOAD, Kind.OTHER, Kind.ABORT_UPLOAD]
    assert [request.kind for request in fault_proxy.requests] == kinds


def test_every_request_of_mixed_kinds_receives_one_response(stores: Stores, fault_proxy: FaultProxy) -> None:
    store = stores.store(retries=0)
    for request in (*KINDS.values(), *reversed(KINDS.values())):
        stores.direct.put(stores.bucket, "old", b"content")
        request(store)
    assert all(request.status in (200, 204) for request in fault_proxy.requests)


def test_requests_record_method_range_status_and_bytes(stores: Stores, fault_proxy: FaultProxy) -> None:
    store = stores.store()
    obstore.put(store, "new", b"12345")
    assert bytes(obstore.get_range(store, "new", start=1, end=3)) == b"23"
    with pytest.raises(FileNotFoundError):
        obstore.head(store, "absent")
    put, get, head = fault_proxy.requests
    assert (put.method, put.sent_bytes, put.status, put.received_bytes) == ("PUT", 5, 200, 0)
    assert (get.method, get.range, get.status, get.received_bytes) == ("GET", "bytes=1-2", 206, 2)
    assert (head.target, head.status, head.fault) == (f"/{stores.bucket}/absent", 404, None)


def test_client_that_sends_chunks_and_expects_continue_is_served(
    s3_server: S3Server, bucket: str, fault_proxy: FaultProxy
) -> None:
    address = fault_proxy.endpoint.removeprefix("http://")
    files = S3FileSystem(
        access_key=s3_server.access_key,
        secret_key=s3_server.secret_key,
        endpoint_override=address,
        scheme="http",
        region="us-east-1",
    )
    body = bytes(range(256)) * 60_000
    with (
        fault_proxy.inject(Fault.SLOW_DOWN, Kind.PUT_PART) as injection,
        files.open_output_stream(f"{bucket}/new") as out,
    ):
        out.write(body)
    assert injection.fired == 1
    with files.open_input_stream(f"{bucket}/new") as file:
        assert file.read() == body


def test_connections_are_reused_and_large_bodies_pass(stores: Stores, fault_proxy: FaultProxy) -> None:
    store, body = stores.store(), b"0123456789abcdef" * 2 * MIB
    obstore.put(store, "large", body, use_multipart=False)
    assert bytes(obstore.get(store, "large").bytes()) == body
    for _ in range(20):
        obstore.head(store, "large")
    assert len(fault_proxy.connections) < 5  # of 22 requests


@pytest.mark.parametrize(("fault", "kind"), _cases(set(Fault) - SILENT))
def test_request_that_always_fails_raises(stores: Stores, fault_proxy: FaultProxy, fault: Fault, kind: Kind) -> None:
    is_stall = fault in (Fault.STALL, Fault.STALL_BODY)
    store = stores.store(retries=0 if is_stall else 1, timeout_seconds=0.5 if is_stall else 60)
    failed = pytest.raises((GenericError, PermissionDeniedError, FileNotFoundError))
    with fault_proxy.inject(fault, kind, times=None) as injection, failed:
        KINDS[kind](store)
    assert injection.fired >= 1


@pytest.mark.parametrize(("fault", "kind"), [case for case in _cases(RETRIED) if case not in NOT_RETRIED])
def test_nth_request_that_fails_once_is_retried(
    stores: Stores, fault_proxy: FaultProxy, fault: Fault, kind: Kind
) -> None:
    store = stores.store()
    for nth in count(1):
        stores.direct.put(stores.bucket, "old", b"content")
        with fault_proxy.inject(fault, kind, first=nth) as injection:
            KINDS[kind](store)
        if not injection.fired:
            break
    assert nth == (4 if kind is Kind.PUT_PART else 2)


@pytest.mark.parametrize(
    ("fault", "is_stored"), [(Fault.LOST_REPLY, True), (Fault.RESET, False), (Fault.CUT_UPLOAD, False), (Fault.STALL, False)]
)  # fmt: skip
def test_put_without_a_reply_is_carried_out_only_if_its_reply_was_lost(
    stores: Stores, fault_proxy: FaultProxy, fault: Fault, is_stored: bool
) -> None:
    store = stores.store(retries=0, timeout_seconds=0.5 if fault is Fault.STALL else 60)
    with fault_proxy.inject(fault), pytest.raises(GenericError):
        obstore.put(store, "new", b"x" * MIB, use_multipart=False)
    assert ("new" in stores.direct.objects(stores.bucket)) is is_stored


def test_wrong_bytes_have_the_right_length(stores: Stores, fault_proxy: FaultProxy) -> None:
    body = bytes(range(256)) * 1000
    stores.direct.put(stores.bucket, "old", body)
    with fault_proxy.inject(Fault.WRONG_BYTES) as injection:
        received = bytes(obstore.get(stores.store(), "old").bytes())
    assert injection.fired == 1
    assert len(received) == len(body)
    assert sum(a != b for a, b in zip(received, body, strict=True)) == 1
    assert bytes(obstore.get(stores.store(), "old").bytes()) == body


def test_short_listing_lacks_its_second_half(stores: Stores, fault_proxy: FaultProxy) -> None:
    with fault_proxy.inject(Fault.SHORT_LISTING) as injection:
        assert [file["path"] for file in obstore.list(stores.store()).collect()] == ["old"]
    assert injection.fired == 1
    assert len(obstore.list(stores.store()).collect()) == 2


def test_stale_listing_repeats_the_previous_response(stores: Stores, fault_proxy: FaultProxy) -> None:
    store = stores.store()
    obstore.list(store).collect()
    obstore.delete(store, "old")
    obstore.put(store, "new", b"")
    with fault_proxy.inject(Fault.STALE_LISTING) as injection:
        assert {file["path"] for file in obstore.list(store).collect()} == {"old", "other"}
    assert injection.fired == 1
    assert {file["path"] for file in obstore.list(store).collect()} == {"new", "other"}


def test_fault_without_anything_to_change_has_not_fired(stores: Stores, fault_proxy: FaultProxy) -> None:
    stores.direct.put(stores.bucket, "empty", b"")
    store = stores.store()
    with fault_proxy.inject(Fault.STALE_LISTING) as stale, fault_proxy.inject(Fault.WRONG_BYTES) as wrong:
        obstore.list(store).collect()
        obstore.get(store, "empty").bytes()
    assert (stale.matched, stale.fired) == (wrong.matched, wrong.fired) == (1, 0)


def test_inject_rejects_a_kind_that_the_fault_does_not_apply_to(fault_proxy: FaultProxy) -> None:
    with (
        pytest.raises(ValueError, match="WRONG_BYTES does not apply to"),
        fault_proxy.inject(Fault.WRONG_BYTES, Kind.PUT),
    ):
        pass


def test_stalled_request_ends_with_the_injection(s3_server: S3Server, bucket: str, fault_proxy: FaultProxy) -> None:
    client = S3Client(fault_proxy.endpoint, s3_server.access_key, s3_server.secret_key)
    errors: list[BaseException] = []

    def put() -> None:
        try:
            client.put(bucket, "new", b"")
        except BaseException as error:
            errors.append(error)

    with fault_proxy.inject(Fault.STALL):
        thread = threading.Thread(target=put)
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
    thread.join(30)
    assert not thread.is_alive()
    assert isinstance(errors[0], ConnectionError)


def test_latency_is_added_to_each_request(stores: Stores, fault_proxy: FaultProxy) -> None:
    waits: list[float] = []
    fault_proxy.closed.wait = lambda seconds: bool(waits.append(seconds))  # type: ignore[assignment, method-assign, func-returns-value]
    fault_proxy.latency_seconds = 0.02
    obstore.head(stores.store(), "old")
    assert waits == [0.02]
