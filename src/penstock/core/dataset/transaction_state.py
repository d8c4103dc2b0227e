"""A client's transaction, that lasts over many calls: how it stands, as every process that serves it can see."""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from uuid import UUID


class State(Enum):
    ACTIVE = "active"
    COMMITTED = "committed"
    ABORTED = "aborted"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Standing:
    id: UUID
    user: UUID
    state: State
    commit_no: int  # the snapshot that it reads
    auto_commit: bool
    seq: int  # how many operations it has kept
    owner: str  # the process that began it: it does not outlive that one
    operating: str | None  # the process that is carrying out an operation of it
    beaten_at: datetime  # the owner's last sign of life
    expires_at: datetime  # unless something happens before
    receipt: str | None  # the key of its commit's receipt; none if it wrote nothing
