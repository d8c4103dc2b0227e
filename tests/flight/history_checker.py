"""Check histories of clients that append to lists for anomalies.

An element is appended once, by one transaction. The final lists give the order of all appends, so every anomaly is visible:
a committed append that is missing was lost, a read that is not a prefix of the final list is an anomaly, and a reader that
saw only some appends of a transaction has a partial read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Key = str
Lists = Mapping[Key, tuple[int, ...]]


@dataclass(frozen=True)
class TransactionResult:
    """A transaction: its reads, its appends and its reported outcome."""

    reads: Lists
    appends: Mapping[Key, int] = field(default_factory=dict)
    committed: bool = True


def anomalies(history: list[TransactionResult], final: Lists) -> list[str]:
    return [
        *_appends(history, final),
        *(
            f"{key}: the read {seen} is not a prefix of {final[key]}"
            for result in history
            for key, seen in result.reads.items()
            if final[key][: len(seen)] != seen
        ),
        *_partial_reads(history),
    ]


def _appends(history: list[TransactionResult], final: Lists) -> list[str]:
    problems = []
    for result in history:
        for key, element in result.appends.items():
            occurrences = final[key].count(element)
            if occurrences != result.committed:
                problems.append(f"{key}: {element} occurs {occurrences} times; committed: {result.committed}")
            elif (
                result.committed
                and key in result.reads
                and final[key][: len(result.reads[key]) + 1] != (*result.reads[key], element)
            ):
                problems.append(
                    f"{key}: another client wrote between the read {result.reads[key]} and the append of {element}"
                )
    appended = {element for result in history for element in result.appends.values()}
    return problems + [
        f"{key}: no client appended {sorted(set(seen) - appended)}"
        for key, seen in final.items()
        if set(seen) - appended
    ]


def _partial_reads(history: list[TransactionResult]) -> list[str]:
    """Report readers that saw only a part of the writes of a transaction."""
    writers = [result for result in history if result.committed and len(result.appends) > 1]
    return [
        f"{dict(writer.appends)} was read partially: {dict(reader.reads)}"
        for writer in writers
        for reader in history
        if len({element in reader.reads[key] for key, element in writer.appends.items() if key in reader.reads}) > 1
    ]
