"""Read batches ahead of their consumer, up to a fixed number of bytes."""

import threading
from collections import deque
from collections.abc import Generator, Iterator

import pyarrow as pa


def read_ahead(batches: Generator[pa.RecordBatch], max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the batches in order, while a thread reads the next ones.

    The first batch is read without a thread, because many consumers need no more. The thread ends when it has read
    `max_bytes`, so that a slow consumer holds memory, but no thread; another thread starts when half of them are
    consumed.

    Args:
        batches: the source; it is closed when the consumer is closed
        max_bytes: of the batches that wait for the consumer; the last one may exceed it
    """
    buffer = _BatchBuffer(batches, max_bytes)
    try:
        first = next(batches, None)
        while first is not None:
            yield first
            del first  # the consumer may have released it
            first = buffer.take()
    finally:
        buffer.close()


class _BatchBuffer:
    def __init__(self, batches: Generator[pa.RecordBatch], max_bytes: int) -> None:
        self._batches, self._max_bytes = batches, max_bytes
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, pa.RecordBatch]] = deque()
        self._bytes = 0
        self._is_filling = self._is_finished = self._is_closed = False
        self._error: BaseException | None = None

    def take(self) -> pa.RecordBatch | None:
        """Return the next batch; None at the end. Raise the error of the source after the batches before it."""
        with self._changed:
            if not self._is_filling and not self._is_finished and self._bytes <= self._max_bytes // 2:
                self._start()
            self._changed.wait_for(lambda: self._waiting or not self._is_filling)
            if self._waiting:
                size, batch = self._waiting.popleft()
                self._bytes -= size
                return batch
            error, self._error = self._error, None
        if error:
            raise error
        return None

    def close(self) -> None:
        """Drop the batches and close the source, or let the thread close it after its current batch."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            is_filling = self._is_filling
        if not is_filling:
            self._batches.close()

    def _start(self) -> None:
        self._is_filling = True
        try:
            threading.Thread(target=self._fill, name="scan-read-ahead").start()
        except BaseException:
            self._is_filling = False
            raise

    def _fill(self) -> None:
        """Read batches until the buffer is full, the source ends or the consumer is closed."""
        while True:
            batch, error = None, None
            try:
                batch = next(self._batches, None)
            except BaseException as raised:  # raised again in the thread of the consumer
                error = raised
            with self._changed:
                if batch is not None and not self._is_closed:
                    size = batch.get_total_buffer_size()
                    self._waiting.append((size, batch))
                    self._bytes += size
                self._error, self._is_finished = error, batch is None
                self._is_filling = not (self._is_finished or self._is_closed or self._bytes >= self._max_bytes)
                is_closed = self._is_closed
                self._changed.notify()
                if not self._is_filling:
                    break
        if is_closed:
            self._batches.close()
