"""Stored state of a client transaction that spans several calls."""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from uuid import UUID


class TransactionState(Enum):
    ACTIVE = "active"
    COMMITTED = "committed"
    ABORTED = "aborted"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    id: UUID
    user: UUID
    state: TransactionState
    commit_no: int  # lake snapshot that it reads
    auto_commit: bool
    seq: int  # number of stored operations
    owner: str  # process that began it; the transaction ends with that process
    operating: str | None  # process that is executing an operation of it
    heartbeat_at: datetime  # last heartbeat of the owner
    expires_at: datetime  # unless there is another operation before
    receipt: str | None  # key of the commit's receipt; None if it wrote nothing
