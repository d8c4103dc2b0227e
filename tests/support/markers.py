"""Mark tests by the services that they start, so that `-m` can exclude them.

The markers are spark, cluster, postgres, browser, container, s3 and slow.
The marker `soak` selects the tests that do more in `make soak`.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

_BY_FIXTURE = {
    "spark": "spark", "spark_cluster": "cluster", "postgres_url": "postgres", "chromium": "browser", "s3_server": "s3",
}  # fmt: skip
# "s3" as a word: an address s3://… alone starts no server.
_BY_PARAMETER = {
    "spark": "spark",
    "postgresql": "postgres",
    "(?<![a-z])bucket(?![a-z])": "s3",
    "(?<![a-z0-9])s3(?![a-z0-9:])": "s3",
}
# Modules whose tests start servers or many processes, or kill them at every step. `make quick` leaves them out.
_SLOW_MODULES = {
    "catalog/test_conflicts", "catalog/test_statement_limits",
    "cli/test_pipeline", "cli/test_query", "cli/test_worker",
    "deployment/test_deployment", "deployment/test_package",
    "docs/test_docs_run",
    "engines/test_merge_deleted_rows", "engines/test_merge_deletion_vectors", "engines/test_merge_random", "engines/test_selector",
    "faults/test_commit_faults", "faults/test_directory_swap", "faults/test_group_edit_faults", "faults/test_overload",
    "faults/test_spark_loss", "faults/test_union_faults",
    "flight/test_atomicity", "flight/test_backpressure", "flight/test_edit_isolation", "flight/test_examples", "flight/test_isolation", "flight/test_serve",
    "rest/test_openapi", "rest/test_operations", "rest/test_paging", "rest/test_query_executions", "rest/test_query_results",
    "rest/test_runs", "rest/test_serve", "rest/test_slow_clients", "rest/test_undelete",
    "service/test_compact", "service/test_edit_history", "service/test_maintenance", "service/test_merge_interference", "service/test_merge_memory", "service/test_run_workers",
    "service/test_reads_of_marked_files", "service/test_sandbox", "service/test_sandbox_deletion_vectors",
    "service/test_sandbox_vector_limit",
    "storage/test_file_cache", "storage/test_import_files", "storage/test_object_store", "ui/test_reconnects",
}  # fmt: skip
# Tests of other modules that take more than about half a second of CPU time, most of them in processes that they start.
_SLOW_TESTS = {
    "catalog/test_commit": (
        "test_commit_of_two_datasets_is_atomic_in_every_lake_snapshot", "test_concurrent_appends_of_threads_are_all_committed",
    ),
    "catalog/test_snapshots": ("test_pruned_files_contain_every_matching_row_at_any_version",),
    "cli/test_cli": (
        "test_drop_on_a_terminal_asks_for_confirmation", "test_export_interrupted_by_ctrl_c_leaves_no_file",
        "test_export_on_a_full_disk_leaves_no_file", "test_file_names_that_are_not_utf8_are_printed",
        "test_import_interrupted_by_ctrl_c_changes_nothing", "test_import_on_a_full_disk_changes_nothing",
        "test_output_in_a_limited_encoding_succeeds", "test_process_exit_codes_and_streams",
        "test_progress_bar_is_drawn_on_a_terminal_only", "test_read_escapes_control_characters",
        "test_read_into_a_closed_pipe_exits_with_zero", "test_read_on_a_terminal_prints_a_preview",
        "test_unexpected_exception_prints_no_traceback",
    ),
    "cli/test_merge": (
        "test_full_merge_into_foreign_files_requires_yes", "test_full_merge_on_a_terminal_asks_for_confirmation",
        "test_merge_recover_reports_the_outcome",
    ),
    "cli/test_schema": ("test_schema_infer_from_dataset_and_sql",),
    "deployment/test_server_processes": (
        "test_dead_process_is_restarted_and_other_processes_continue", "test_page_is_served_by_one_process_on_its_own_port",
        "test_processes_share_ports_metrics_and_workspace", "test_processes_stop_when_the_supervisor_is_killed",
        "test_query_is_listed_and_cancelled_through_any_process",
    ),
    "docs/test_docs_complete": ("test_routes_page_lists_exactly_the_served_routes",),
    "engines/test_merge": (
        "test_merge_memory_is_bounded_by_batches", "test_merge_nested_structs_in_sliced_batches_are_written_unchanged",
        "test_merge_unreadable_files_and_folders_are_reported",
    ),
    "engines/test_odata_duckdb": ("test_page_query_each_filter_case_returns_expected_rows",),
    "engines/test_spark_jobs": ("test_start_session_old_java_reports_required_version",),
    "flight/test_client": ("test_read_that_fails_midway_raises_the_server_error",),
    "flight/test_malformed": (
        "test_malformed_streams_are_rejected_and_server_survives", "test_table_is_unchanged_after_malformed_writes",
    ),
    "flight/test_memory": ("test_rejected_put_releases_its_message_without_garbage_collection",),
    "flight/test_server": (
        "test_server_serves_concurrent_reads", "test_slow_readers_use_bounded_memory_and_block_no_other_call",
    ),
    "python_api/test_lake": (
        "test_append_on_a_full_disk_reports_the_cause", "test_files_with_a_filter_skips_files_by_statistics",
        "test_query_at_earlier_versions_returns_the_same_rows", "test_query_result_is_read_by_pandas_and_polars",
        "test_query_run_above_the_row_limit_is_rejected", "test_query_run_after_close_is_rejected",
        "test_query_run_with_schema_violation_returns_no_rows", "test_register_failure_leaves_no_result_schema",
    ),
    "rest/test_middleware": (
        "test_started_response_has_no_timeout", "test_stalled_client_is_disconnected_without_error",
    ),
    "rest/test_tenant_isolation": ("test_other_tenant_reads_and_changes_nothing",),
    "service/test_client_transactions": ("test_failure_of_nth_database_call_leaves_consistent_state",),
    "service/test_memory_release": ("test_release_free_memory_returns_freed_blocks_of_all_threads",),
    "service/test_streaming_inserts": ("test_insert_memory_does_not_grow_with_stream",),
}  # fmt: skip


def is_slow_module(path: Path) -> bool:
    """Return whether all tests of a file are slow."""
    return f"{path.parent.name}/{path.stem}" in _SLOW_MODULES


def mark(items: list[pytest.Item]) -> None:
    """Add the markers of each test by its fixtures, its parameters, its module and its name."""
    for item in items:
        for name in _markers(item):
            item.add_marker(name)


def _markers(item: pytest.Item) -> Iterator[str]:
    yield from {_BY_FIXTURE[name] for name in getattr(item, "fixturenames", ()) if name in _BY_FIXTURE}
    callspec = getattr(item, "callspec", None)
    for value in callspec.params.values() if callspec else ():
        for pattern, name in _BY_PARAMETER.items():
            if isinstance(value, str) and re.search(pattern, value.lower()):
                yield name
    module = f"{item.path.parent.name}/{item.path.stem}"
    if module == "deployment/test_container":
        yield "container"
    if is_slow_module(item.path) or item.name.partition("[")[0] in _SLOW_TESTS.get(module, ()):
        yield "slow"
    if _does_more_in_soak(item):
        yield "soak"


def _does_more_in_soak(item: pytest.Item) -> bool:
    function = getattr(item, "obj", None)
    return (
        "soak" in getattr(item, "fixturenames", ())
        or getattr(function, "is_hypothesis_test", False)
        or hasattr(getattr(item, "module", None), "SOAK")  # parameters or numbers of its tests depend on it
    )
