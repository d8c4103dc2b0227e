"""The parent's end of the sandbox protocol: send a statement and its datasets, and validate every response."""

import json
import os
import select
import signal
from base64 import b64encode
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa

from penstock.core.dataset.deletion_vector import DeletionVector
from penstock.core.names import has_invalid_characters
from penstock.errors import Invalid, NotFound, PenstockError, Unavailable
from penstock.service.queries.sandbox.limits import QueryLimits
from penstock.service.queries.sandbox.protocol import (
    MAX_REQUEST_BYTES,
    MAX_RESPONSE_BYTES,
    Channel,
    ChannelClosed,
    MessageTooLarge,
    MessageType,
    decode_batch,
    encode_params,
)
from penstock.service.queries.sandbox.sql_analysis import ParsedStatement, TableRef

DEADLINE_EXCEEDED = b"late"  # exit status that the fork server reports for a process it killed at its deadline
_EXIT_SECONDS = 2.0  # time in which a process that closed its channel should exit
_MAX_MESSAGE_CHARACTERS = 1_000


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """A file that has to be fetched before a process can read it."""

    path: str  # relative to the store
    bytes: int
    checksum: str


FileProvider = Callable[[Sequence[FetchedFile]], None]  # fetches files, which then stay until the process has ended


@dataclass(frozen=True, slots=True)
class RelationFile:
    path: str  # absolute
    rows: int
    stats_json: str = "{}"  # column statistics in the format of `core.dataset.column_stats`
    deleted: DeletionVector | None = None  # rows that the query does not see; `rows` counts them
    fetched: FetchedFile | None = None  # None: the file is at its path

    @property
    def vector_bytes(self) -> int:
        return len(self.deleted.to_bytes()) if self.deleted else 0


@dataclass(frozen=True, slots=True)
class Relation:
    """Schema and files of a dataset. Old files may lack columns or have narrower types."""

    schema: pa.Schema
    files: Sequence[RelationFile]


class QueryProcess:
    """A sandbox process that runs one statement. Its responses are untrusted."""

    def __init__(
        self,
        limits: QueryLimits,
        channel: Channel,
        exit_status: int,
        kill: Callable[[], None],
        provide_files: FileProvider = lambda _: None,
    ) -> None:
        """Wrap a process.

        Args:
            limits: limits of the statement
            channel: connection to the process
            exit_status: pipe on which the fork server reports how the process ended
            kill: ends the process
            provide_files: fetches the files that the process requests before it reads them
        """
        self._limits, self._channel, self._exit_status, self._kill_process = limits, channel, exit_status, kill
        self._provide_files = provide_files
        self._provided_paths: set[str] = set()
        self._fetched_files: list[FetchedFile | None] = []  # by the number with which the process requests them
        self._killed = False  # by this object
        self._parameters: tuple[str, ...] = ()

    def parse(self, sql: str) -> ParsedStatement:
        """Parse a statement, which must be one SELECT, and return its tables and parameters.

        Raises:
            Invalid: the statement is not valid or not allowed (bad_sql, not_one_select)
            NotFound: it names a table without a schema
        """
        self._send_statement(sql)
        return self._receive_parsed()

    def bind(self, relations: Mapping[TableRef, Relation]) -> None:
        """Give the statement the datasets that `parse` returned."""
        self._send_relations(relations)
        self._receive_json()

    def prepare(
        self, sql: str, relations: Mapping[TableRef, Relation], parsed: ParsedStatement | None = None
    ) -> ParsedStatement:
        """Parse and bind in one round trip, for a statement whose datasets are known.

        Args:
            sql: the statement
            relations: its datasets
            parsed: result of an earlier `parse`; None parses the statement
        """
        if parsed:
            self._parameters = parsed.parameters
            self._send({"select": parsed.select})
        else:
            self._send_statement(sql)
        self._send_relations(relations)
        parsed = parsed or self._receive_parsed()
        self._receive_json()
        return parsed

    def _send_statement(self, sql: str) -> None:
        if len(sql) > self._limits.sql_characters:
            raise Invalid("bad_sql.too_long", {"characters": len(sql), "limit": self._limits.sql_characters})
        if has_invalid_characters(sql):
            raise Invalid("bad_sql.invalid_characters")
        self._send({"parse": sql})

    def _receive_parsed(self) -> ParsedStatement:
        response = self._receive_json()
        try:
            tables = tuple(
                TableRef(str(schema), str(table), None if version is None else int(version))
                for schema, table, version in response["tables"]
            )
            self._parameters = tuple(map(str, response["parameters"]))
            flags = bool(response["only_compared"]), bool(response["repeatable"]), bool(response["ordered"])
            return ParsedStatement(tables, self._parameters, *flags, str(response["select"]))
        except (TypeError, ValueError, KeyError):
            self._raise_protocol_error()

    def _send_relations(self, relations: Mapping[TableRef, Relation]) -> None:
        self._check_size(relations.values())
        encoded = []
        for ref, relation in relations.items():
            first_file = len(self._fetched_files) if any(file.fetched for file in relation.files) else None
            encoded.append([[ref.schema, ref.table, ref.version], _encode_relation(relation, first_file)])
            if first_file is not None:
                self._fetched_files += (file.fetched for file in relation.files)
        self._send({"bind": encoded})

    def _check_size(self, relations: Collection[Relation]) -> None:
        """Reject datasets whose files and vectors exceed what a process can receive within its memory."""
        files = [file for relation in relations for file in relation.files]
        size, limit = sum(file.vector_bytes for file in files), self._limits.vector_bytes
        if size > limit:
            raise Invalid("query_too_large.deletion_vectors", {"bytes": size, "limit": limit})
        size, limit = sum(len(file.path) + len(file.stats_json) for file in files), MAX_REQUEST_BYTES // 2
        if size > limit:
            raise Invalid("query_too_large.files", {"bytes": size, "limit": limit})

    def describe(self, parameters: Mapping[str, Any] | None = None) -> pa.Schema:
        """Return the result columns without reading rows. A parameter without a value is NULL."""
        values = dict.fromkeys(self._parameters) | dict(parameters or {})
        rows = self.run(after=" AS q LIMIT 0", parameters=values)
        return rows.table().schema

    def run(
        self,
        before: str = "SELECT * FROM ",
        after: str = " AS q",
        parameters: Mapping[str, Any] | None = None,
        max_bytes: int | None = None,
        filter_columns: Collection[str] = (),
        tie_break: Sequence[int] = (),
    ) -> "ResultStream":
        """Run `before (statement) after`. Read the result to its end before the next request.

        Args:
            before: SQL in front of the statement
            after: SQL behind the statement
            parameters: values by name
            max_bytes: a smaller limit than that of all queries; the rows then arrive in small batches, so that the
                reader can stop early
            filter_columns: columns that `after` filters by; those of the statement itself are known
            tie_break: numbers of result columns, from 1, that the ORDER BY of the statement continues with

        Raises:
            Invalid: a parameter is missing, or the statement fails or exceeds a limit
        """
        names = {name.lower(): name for name in self._parameters}  # DuckDB ignores the case of parameter names
        values = {names.get(name.lower(), name): value for name, value in (parameters or {}).items()}
        if missing := [name for name in self._parameters if name not in values]:
            raise Invalid("missing_parameter", {"missing": missing[0]}, parameters=missing)
        limit = self._limits.bytes if max_bytes is None else min(max_bytes, self._limits.bytes)
        self._send(
            {
                "before": before,
                "after": after,
                "filtered": [name.lower() for name in filter_columns],
                "parameters": encode_params(values),
                "small_batches": max_bytes is not None,
                "tie_break": list(tie_break),
            }
        )
        _, content = self._receive(MessageType.ARROW)
        try:
            schema = pa.ipc.read_schema(content)
        except (pa.ArrowException, ValueError, OSError):
            self._raise_protocol_error()
        return ResultStream(schema, self._receive_batches(schema, limit))

    def _receive_batches(self, schema: pa.Schema, limit: int) -> Generator[pa.RecordBatch]:
        rows = size = 0
        finished = False
        try:
            while not finished:
                message_type, content = self._receive(
                    MessageType.ARROW, MessageType.DONE, max_bytes=limit - size, limit=limit
                )
                finished = message_type is MessageType.DONE
                if message_type is MessageType.ARROW:
                    batch = self._decode_batch(content, schema)
                    size += content.size
                    rows += batch.num_rows
                    if rows > self._limits.rows:
                        raise _too_large(f"{self._limits.rows:,} rows")
                    yield batch
        finally:
            if not finished:  # the rest of the result is not needed
                self._kill()

    def _decode_batch(self, content: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
        try:
            return decode_batch(content, schema)
        except (pa.ArrowException, ValueError, OSError) as cause:
            if "does not fit in precision" in str(cause):
                self._kill()
                raise Invalid("query_failed.integer_too_large") from None
            self._raise_protocol_error()

    def _receive_json(self) -> Any:
        _, content = self._receive(MessageType.JSON)
        try:
            return json.loads(content.to_pybytes() or b"null")
        except ValueError:
            self._raise_protocol_error()

    def _send(self, request: Any) -> None:
        try:
            self._channel.send_message(MessageType.JSON, request)
        except ChannelClosed:
            self._raise_exit_error()

    def _receive(
        self, *expected: MessageType, max_bytes: int = MAX_RESPONSE_BYTES, limit: int | None = None
    ) -> tuple[MessageType, pa.Buffer]:
        """Return the next message of an expected type. Requests for files are answered."""
        while True:
            message_type, content = self._receive_any(max_bytes, limit)
            if message_type is MessageType.ERROR:
                raise self._decode_error(content)
            if message_type in expected:
                return message_type, content
            if message_type is not MessageType.FILES:
                self._raise_protocol_error()
            if files := self._decode_file_numbers(content):
                self._provide_files(files)
            self._send(None)

    def _decode_file_numbers(self, content: pa.Buffer) -> list[FetchedFile]:
        """Return the files that the process requests for the first time. They must be files of its relations."""
        try:
            numbers = json.loads(content.to_pybytes())
            files = [self._fetched_files[number] for number in numbers if type(number) is int and number >= 0]
            if len(files) != len(numbers) or len(files) > len(self._fetched_files):
                self._raise_protocol_error()
        except (ValueError, TypeError, IndexError):
            self._raise_protocol_error()
        new_files = {file.path: file for file in files if file and file.path not in self._provided_paths}
        self._provided_paths |= new_files.keys()
        return list(new_files.values())

    def _receive_any(self, max_bytes: int, limit: int | None) -> tuple[MessageType, pa.Buffer]:
        try:
            return self._channel.receive(max_bytes)
        except ChannelClosed:
            self._raise_exit_error()
        except MessageTooLarge:
            self._kill()
            raise _too_large(f"{limit or self._limits.bytes:,} bytes") from None
        except ValueError:
            self._raise_protocol_error()

    def _decode_error(self, content: pa.Buffer) -> PenstockError:
        try:
            response = json.loads(content.to_pybytes())
            reason, message = str(response["reason"]), str(response.get("message", ""))[:_MAX_MESSAGE_CHARACTERS]
        except (ValueError, KeyError, TypeError, AttributeError):
            self._raise_protocol_error()
        match reason:
            case "query_out_of_memory":
                return self._out_of_memory()
            case "file_unreadable":
                return Unavailable(reason)
            case "dataset_not_found":
                return NotFound(reason, message, dataset=str(response.get("dataset"))[:_MAX_MESSAGE_CHARACTERS])
            case "bad_sql" if isinstance(response.get("position"), int):
                return Invalid(reason, message, position=response["position"])
            case "bad_sql" | "not_one_select":
                return Invalid(reason, message)
        return Invalid("query_failed.duckdb", {"cause": message})

    def _kill(self) -> None:
        self._killed = True
        self._kill_process()

    def _raise_exit_error(self) -> NoReturn:
        """Raise the error for a process that ended without a response, by its exit status."""
        killed = self._killed
        status = self._wait_for_exit()
        if status == DEADLINE_EXCEEDED:
            raise Invalid("query_timed_out.elapsed", seconds=self._limits.seconds)
        ended_by = os.WTERMSIG(int(status)) if status.isdigit() and os.WIFSIGNALED(int(status)) else None
        if ended_by == signal.SIGXCPU:
            raise Invalid("query_timed_out.cpu", cpu_seconds=self._limits.cpu_seconds)
        if ended_by == signal.SIGABRT:  # the effect of a failed memory allocation
            raise self._out_of_memory()
        if not killed and (ended_by == signal.SIGKILL or not status):  # by the machine or its operator
            raise Unavailable("query_interrupted")
        raise Invalid("query_failed.crashed")

    def _wait_for_exit(self) -> bytes:
        for _ in range(2):
            if select.select([self._exit_status], [], [], _EXIT_SECONDS)[0]:
                return os.read(self._exit_status, 64)
            self._kill()
        return b""

    def _out_of_memory(self) -> Invalid:
        memory = self._limits.memory_bytes
        return Invalid("query_out_of_memory", {"mebibytes": memory >> 20}, memory=memory)

    def _raise_protocol_error(self) -> NoReturn:
        self._kill()
        raise Invalid("query_failed.protocol") from None


class ResultStream:
    """The rows of a query as they arrive. Closing the stream before its end kills the process."""

    def __init__(self, schema: pa.Schema, batches: Generator[pa.RecordBatch]) -> None:
        self.schema = schema
        self._batches = batches

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._batches

    def close(self) -> None:
        """Discard the rest of the rows."""
        self._batches.close()

    def table(self) -> pa.Table:
        """Read all rows."""
        return pa.Table.from_batches(self, self.schema)


def _too_large(limit: str) -> Invalid:
    return Invalid("query_too_large.result", {"limit": limit})


def _encode_relation(relation: Relation, first_file: int | None) -> dict[str, Any]:
    return {
        "first_file": first_file,
        "schema": b64encode(relation.schema.remove_metadata().serialize()).decode(),
        "files": [[file.path, file.rows, file.stats_json, _encode_vector(file.deleted)] for file in relation.files],
    }


def _encode_vector(deleted: DeletionVector | None) -> str | None:
    return b64encode(deleted.to_bytes()).decode() if deleted else None
