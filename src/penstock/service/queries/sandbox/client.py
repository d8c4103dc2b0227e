"""A child as the service sees it: it is told a statement and the datasets, and its answers are believed only when checked."""

import json
import os
import select
import signal
from base64 import b64encode
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa

from penstock.core.names import unstorable
from penstock.errors import Invalid, NotFound, PenstockError, Unavailable
from penstock.service.queries.sandbox.limits import Limits
from penstock.service.queries.sandbox.sql_analysis import Parsed, Ref
from penstock.service.queries.sandbox.protocol import MAX_TOLD, Hung, Kind, Line, TooLong, batch_of, spelled

LATE = b"late"  # what the nursery tells of a child that it killed at its deadline
_PATIENCE = 2.0  # seconds in which a child that hung up should be dead
_MAX_MESSAGE = 1_000  # characters


@dataclass(frozen=True, slots=True)
class File:
    path: str  # absolute
    rows: int
    known: str = "{}"  # what is known of its columns, as `core.stats` writes it


@dataclass(frozen=True, slots=True)
class Relation:
    """What a dataset is to a query: its schema, and its files, of which old ones may lack columns or be narrower."""

    schema: pa.Schema
    files: Sequence[File]


class Cell:
    def __init__(self, limits: Limits, line: Line, ended: int, kill: Callable[[], None]) -> None:
        self._limits, self._line, self._ended, self._end_it = limits, line, ended, kill
        self._killed = False  # by us
        self._parameters: tuple[str, ...] = ()

    def parse(self, sql: str) -> Parsed:
        """What the statement names. It must be one SELECT."""
        self._say_statement(sql)
        return self._parsed()

    def bind(self, relations: Mapping[Ref, Relation]) -> None:
        """Give the statement the datasets that `parse` told of."""
        self._say_relations(relations)
        self._answer()

    def prepare(self, sql: str, relations: Mapping[Ref, Relation], known: Parsed | None = None) -> Parsed:
        """Parse and bind in one go, for a statement whose datasets are known; `known`: what was told of it before."""
        if known:
            self._parameters = known.parameters
            self._say({"select": known.select})
        else:
            self._say_statement(sql)
        self._say_relations(relations)
        parsed = known or self._parsed()
        self._answer()
        return parsed

    def _say_statement(self, sql: str) -> None:
        if len(sql) > self._limits.sql:
            raise Invalid(
                "bad_sql", f"the statement has {len(sql):,} characters; at most {self._limits.sql:,} are allowed"
            )
        if unstorable(sql):
            raise Invalid(
                "bad_sql", "the statement holds a character that is no text: NUL, or half of a surrogate pair"
            )
        self._say({"parse": sql})

    def _parsed(self) -> Parsed:
        told = self._answer()
        try:
            tables = tuple(Ref(str(s), str(t), None if v is None else int(v)) for s, t, v in told["tables"])
            self._parameters = tuple(map(str, told["parameters"]))
            flags = bool(told["only_compared"]), bool(told["repeatable"])
            return Parsed(tables, self._parameters, *flags, str(told["select"]))
        except (TypeError, ValueError, KeyError):
            self._distrust()

    def _say_relations(self, relations: Mapping[Ref, Relation]) -> None:
        self._say({"bind": [[[ref.schema, ref.table, ref.version], _told(each)] for ref, each in relations.items()]})

    def describe(self, parameters: Mapping[str, Any] | None = None) -> pa.Schema:
        """The columns of the statement's rows, without reading any. A parameter that is not given is NULL."""
        values = dict.fromkeys(self._parameters) | dict(parameters or {})
        rows = self.run(after=" AS q LIMIT 0", parameters=values)
        return rows.table().schema

    def run(
        self,
        before: str = "SELECT * FROM ",
        after: str = " AS q",
        parameters: Mapping[str, Any] | None = None,
        most_bytes: int | None = None,
        filtered: Collection[str] = (),
    ) -> "Rows":
        """Carry out `before (the statement) after`. The rows must be read to their end before the next question.

        `filtered`: columns that `after` has a condition on; the statement's own are known. With `most_bytes`, a smaller limit than all queries have, rows come in small pieces: who has enough can stop.
        """
        known = {name.lower(): name for name in self._parameters}  # DuckDB does not mind their case
        given = {known.get(name.lower(), name): value for name, value in (parameters or {}).items()}
        if missing := [name for name in self._parameters if name not in given]:
            raise Invalid("missing_parameter", f"the query needs a value for ${missing[0]}", parameters=missing)
        pieces = most_bytes is not None
        most = self._limits.bytes if most_bytes is None else min(most_bytes, self._limits.bytes)
        self._say(
            {
                "before": before,
                "after": after,
                "filtered": [name.lower() for name in filtered],
                "parameters": spelled(given),
                "pieces": pieces,
            }
        )
        _, content = self._hear(Kind.ARROW)
        try:
            schema = pa.ipc.read_schema(content)
        except (pa.ArrowException, ValueError, OSError):
            self._distrust()
        return Rows(schema, self._batches(schema, most))

    def _batches(self, schema: pa.Schema, most: int) -> Generator[pa.RecordBatch]:
        rows = size = 0
        finished = False
        try:
            while not finished:
                kind, content = self._hear(Kind.ARROW, Kind.DONE, most=most - size, limit=most)
                finished = kind is Kind.DONE
                if kind is Kind.ARROW:
                    batch = self._batch(content, schema)
                    size += content.size
                    rows += batch.num_rows
                    if rows > self._limits.rows:
                        raise _too_large(f"{self._limits.rows:,} rows")
                    yield batch
        finally:
            if not finished:  # nobody will hear the rest
                self._kill()

    def _batch(self, content: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
        try:
            return batch_of(content, schema)
        except (pa.ArrowException, ValueError, OSError) as cause:
            if "does not fit in precision" in str(cause):
                self._kill()
                said = "a whole number has more than 38 digits; cast it to VARCHAR or DOUBLE"
                raise Invalid("query_failed", f"the query failed: {said}") from None
            self._distrust()

    def _answer(self) -> Any:
        _, content = self._hear(Kind.SAID)
        try:
            return json.loads(content.to_pybytes() or b"null")
        except ValueError:
            self._distrust()

    def _say(self, words: Any) -> None:
        try:
            self._line.say(Kind.SAID, words)
        except Hung:
            self._died()

    def _hear(self, *expected: Kind, most: int = MAX_TOLD, limit: int | None = None) -> tuple[Kind, pa.Buffer]:
        try:
            kind, content = self._line.receive(most)
        except Hung:
            self._died()
        except TooLong:
            self._kill()
            raise _too_large(f"{limit or self._limits.bytes:,} bytes") from None
        except ValueError:
            self._distrust()
        if kind is Kind.REFUSED:
            raise self._refusal(content)
        if kind not in expected:
            self._distrust()
        return kind, content

    def _refusal(self, content: pa.Buffer) -> PenstockError:
        try:
            told = json.loads(content.to_pybytes())
            reason, message = str(told["reason"]), str(told.get("message", ""))[:_MAX_MESSAGE]
        except (ValueError, KeyError, TypeError, AttributeError):
            self._distrust()
        match reason:
            case "query_out_of_memory":
                return self._out_of_memory()
            case "file_unreadable":
                return Unavailable(reason, "a data file cannot be read; `penstock doctor --verify` tells which")
            case "dataset_not_found":
                return NotFound(reason, message, dataset=str(told.get("dataset"))[:_MAX_MESSAGE])
            case "bad_sql" if isinstance(told.get("position"), int):
                return Invalid(reason, message, position=told["position"])
            case "bad_sql" | "not_one_select":
                return Invalid(reason, message)
        return Invalid("query_failed", f"the query failed: {message}")

    def _kill(self) -> None:
        self._killed = True
        self._end_it()

    def _died(self) -> NoReturn:
        """It ended without a word: say why, as far as the way it ended tells."""
        killed = self._killed
        ended = self._end()
        if ended == LATE:
            raise Invalid(
                "query_timed_out",
                f"the query took longer than {self._limits.seconds:g} seconds; ask for less",
                seconds=self._limits.seconds,
            )
        by = os.WTERMSIG(int(ended)) if ended.isdigit() and os.WIFSIGNALED(int(ended)) else None
        if by == signal.SIGXCPU:
            raise Invalid(
                "query_timed_out",
                f"the query needed more than {self._limits.cpu_seconds:,} seconds of CPU time; ask for less",
                cpu_seconds=self._limits.cpu_seconds,
            )
        if by == signal.SIGABRT:  # what becomes of a process that gets no more memory
            raise self._out_of_memory()
        if not killed and (by == signal.SIGKILL or not ended):  # by the machine or its operator, and for nothing it did
            raise Unavailable("query_interrupted", "the process that the query ran in was ended; try again in a moment")
        raise Invalid("query_failed", "the query failed: DuckDB could not carry it out, and ended")

    def _end(self) -> bytes:
        for _ in range(2):
            if select.select([self._ended], [], [], _PATIENCE)[0]:
                return os.read(self._ended, 64)
            self._kill()
        return b""

    def _out_of_memory(self) -> Invalid:
        return Invalid(
            "query_out_of_memory",
            f"the query needs more than {self._limits.memory >> 20:,} MiB of memory; ask for less",
            memory=self._limits.memory,
        )

    def _distrust(self) -> NoReturn:
        self._kill()
        raise Invalid("query_failed", "the query failed: its answer could not be read") from None


class Rows:
    """An answer as it comes. What is not read to its end ends the child."""

    def __init__(self, schema: pa.Schema, batches: Generator[pa.RecordBatch]) -> None:
        self.schema = schema
        self._batches = batches

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._batches

    def close(self) -> None:
        """No more of it is wanted."""
        self._batches.close()

    def table(self) -> pa.Table:
        return pa.Table.from_batches(self, self.schema)


def _too_large(limit: str) -> Invalid:
    return Invalid("query_too_large", f"the query answers with more than {limit}; ask for less")


def _told(relation: Relation) -> dict[str, Any]:
    return {
        "schema": b64encode(relation.schema.remove_metadata().serialize()).decode(),
        "files": [[file.path, file.rows, file.known] for file in relation.files],
    }
