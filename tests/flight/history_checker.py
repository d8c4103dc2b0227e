"""Check histories of clients that append to lists for anomalies.

An element is appended once, by one transaction. The lists at the end give the order of all appends, so every anomaly shows:
an append that is gone was lost, a read that is no beginning of the list saw what never was, and who saw one half of a
transaction and not the other saw it torn.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Key = str
Lists = Mapping[Key, tuple[int, ...]]


@dataclass(frozen=True)
class Done:
    """A transaction: its reads, its appends and its reported outcome."""

    reads: Lists
    appends: Mapping[Key, int] = field(default_factory=dict)
    committed: bool = True


def anomalies(history: list[Done], end: Lists) -> list[str]:
    return [
        *_appends(history, end),
        *(
            f"{key}: {seen} was read, and is no beginning of {end[key]}"
            for done in history
            for key, seen in done.reads.items()
            if end[key][: len(seen)] != seen
        ),
        *_torn(history),
    ]


def _appends(history: list[Done], end: Lists) -> list[str]:
    found = []
    for done in history:
        for key, element in done.appends.items():
            there = end[key].count(element)
            if there != done.committed:
                found.append(f"{key}: {element} is there {there} times; committed: {done.committed}")
            elif (
                done.committed
                and key in done.reads
                and end[key][: len(done.reads[key]) + 1] != (*done.reads[key], element)
            ):
                found.append(
                    f"{key}: another client wrote between the read {done.reads[key]} and the append of {element}"
                )
    response = {element for done in history for element in done.appends.values()}
    return found + [
        f"{key}: no client appended {sorted(set(seen) - response)}" for key, seen in end.items() if set(seen) - response
    ]


def _torn(history: list[Done]) -> list[str]:
    """Report readers that saw only a part of the writes of a transaction."""
    writers = [done for done in history if done.committed and len(done.appends) > 1]
    return [
        f"{dict(writer.appends)} was seen in half: {dict(reader.reads)}"
        for writer in writers
        for reader in history
        if len({element in reader.reads[key] for key, element in writer.appends.items() if key in reader.reads}) > 1
    ]
