"""Merge strategies as rules for matched, new and remaining rows.

matched   target rows whose key is in the source         KEEP | UPDATE
new       source rows whose key is not in the target     INSERT | SKIP
rest      target rows whose key is not in the source     KEEP | DELETE
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from penstock.errors import Invalid


class Matched(Enum):
    KEEP = "keep"
    UPDATE = "update"


class New(Enum):
    INSERT = "insert"
    SKIP = "skip"


class Rest(Enum):
    KEEP = "keep"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class MergeRules:
    matched: Matched = Matched.KEEP
    new: New = New.INSERT
    rest: Rest = Rest.KEEP
    deduplicates: bool = False  # keep the highest of several source rows with one key; otherwise they are an error


STRATEGIES: dict[str, MergeRules] = {
    "upsert": MergeRules(matched=Matched.UPDATE),
    "insert": MergeRules(),
    "update": MergeRules(matched=Matched.UPDATE, new=New.SKIP),
    "full_merge": MergeRules(matched=Matched.UPDATE, rest=Rest.DELETE),
    "deduplicate": MergeRules(matched=Matched.UPDATE, deduplicates=True),
}


def rules_for(strategy: str) -> MergeRules:
    """Return the rules of a merge strategy."""
    try:
        return STRATEGIES[strategy]
    except (KeyError, TypeError):
        raise Invalid("unknown_strategy", {"strategy": strategy, "valid": quote_names(list(STRATEGIES))}) from None


def quote_names(names: Sequence[str]) -> str:
    """Join quoted names with commas for an error message: at most 20."""
    return ", ".join(repr(name) for name in names[:20]) + (" and more" if len(names) > 20 else "")
