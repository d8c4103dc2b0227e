"""Merge rows by key: strategies, planning, the engine protocol and the rewrite decision.

All decisions are pure functions over schemas and counts. An engine matches keys and writes files; it does not know the
strategy.
"""

from penstock.core.merge.decision import MergeResult, RewritePlan, compute_merge_stats, plan_rewrite
from penstock.core.merge.engine import (
    FileLayout,
    FileSink,
    MatchCounts,
    MergeEngine,
    MergeOutput,
    MergeSession,
    OutputFile,
    TargetFile,
)
from penstock.core.merge.plan import (
    BATCH_ROWS,
    MergePlan,
    duplicate_keys,
    normalize_keys,
    null_keys,
    plan_merge,
    unify_schemas,
    validate_keys_and_schema,
)
from penstock.core.merge.strategy import STRATEGIES, Matched, MergeRules, New, Rest, rules_for

__all__ = [
    "BATCH_ROWS",
    "STRATEGIES",
    "FileLayout",
    "FileSink",
    "MatchCounts",
    "Matched",
    "MergeEngine",
    "MergeOutput",
    "MergePlan",
    "MergeResult",
    "MergeRules",
    "MergeSession",
    "New",
    "OutputFile",
    "Rest",
    "RewritePlan",
    "TargetFile",
    "compute_merge_stats",
    "duplicate_keys",
    "normalize_keys",
    "null_keys",
    "plan_merge",
    "plan_rewrite",
    "rules_for",
    "unify_schemas",
    "validate_keys_and_schema",
]
