"""Every error reason with its kind and its message.

The key is the reason, which never changes once released, or `reason.variant` where one reason has several messages. A
message is a format string over the values and the facts of the error:

    {name}         the value; a list is joined with commas
    {name!r}       the value in quotes
    {count:row}    a number with its noun: "1 row", "2,000 rows"

`docs/reference/errors.md` is written from this table.
"""

import string
from collections.abc import Mapping
from typing import Any

REASONS: dict[str, tuple[str, str]] = {
    # core
    "abstract_schema_type": ("Invalid", "Type {gts_id} is abstract. Use {base} or a type derived from it"),
    "added_column_required": ("Invalid", "Column {name!r} must be nullable: existing rows have no value for it"),
    "bad_batch_rows": ("Invalid", "batch_rows must be an integer of 1 or more, not {batch_rows!r}"),
    "bad_cluster_key.nested": (
        "Invalid",
        "Column {column!r} has type {data_type}. A cluster key must consist of numbers, texts, bytes, booleans, dates or timestamps",
    ),
    "bad_cluster_key.repeated": ("Invalid", "Column {column!r} occurs twice in the cluster key"),
    "bad_cluster_key.too_many": (
        "Invalid",
        "The cluster key has {count} columns. At most {max_columns} are allowed",
    ),
    "bad_cluster_key.unknown_column": (
        "Invalid",
        "Unknown column {column!r} in the cluster key. Columns of the dataset: {valid}",
    ),
    "bad_column_name.characters": (
        "Invalid",
        "Invalid column name {column}: use 1 to {max_length} printable characters",
    ),
    "bad_column_name.nested_not_utf8": ("Invalid", "Column {name!r}: the name of a nested field is not valid UTF-8"),
    "bad_column_name.not_utf8": ("Invalid", "A column name is not valid UTF-8"),
    "bad_counts.not_counts": ("Invalid", "Merge counts must be integers of 0 or more: {counts}"),
    "bad_counts.wrong_total": (
        "Invalid",
        "Merge counts do not add up: {target_before} rows plus {inserted} inserted minus {deleted} deleted is not {target_after}",
    ),
    "bad_dataset_name.no_dot": (
        "Invalid",
        "Invalid dataset name {name}: it must have the form namespace.table, for example finance.transactions",
    ),
    "bad_dataset_name.too_long": (
        "Invalid",
        "The {part} name has {length} characters. At most {max_length} are allowed",
    ),
    "bad_dataset_name.characters": (
        "Invalid",
        "Invalid {part} name {name}: use letters, digits and _, and start with a letter or _",
    ),
    "bad_filter": ("Invalid", "$filter, position {position}: {problem}"),
    "bad_gts_id.not_text": ("Invalid", "type_id must be a string such as {query_returns}"),
    "bad_gts_id.syntax": ("Invalid", "Invalid GTS id: expected {expected} at position {position}"),
    "bad_json.not_utf8": ("Invalid", "{subject} is not valid UTF-8"),
    "bad_json.syntax": ("Invalid", "{subject} is not valid JSON: {problem} at {location}"),
    "bad_json.too_deep": ("Invalid", "{subject} is nested too deeply"),
    "bad_json.not_json": ("Invalid", "{subject} is not valid JSON: {problem}"),
    "bad_json.number_too_long": ("Invalid", "{subject} contains a number with too many digits"),
    "bad_key_type.extension": (
        "Invalid",
        "Key column {column!r} of the {side} has the extension type {data_type}. Cast the column to {storage_type} or to string, in the source and in the target",
    ),
    "bad_key_type.unsupported": (
        "Invalid",
        "Key column {column!r} of the {side} has type {data_type}. A key must be a number, text, bytes, a date or a timestamp",
    ),
    "bad_keys.not_names": (
        "Invalid",
        "key_columns must be a column name or a list of column names, not {key_columns!r}",
    ),
    "bad_keys.empty": ("Invalid", "key_columns must contain at least one column name, and no blank one"),
    "bad_metadata.not_an_object": ("Invalid", "metadata must be a JSON object"),
    "bad_metadata.too_deep": ("Invalid", "metadata has more than {max_depth} levels"),
    "bad_metadata.too_large": (
        "Invalid",
        "metadata has more than {max_depth} levels or more than {max_values:,} values",
    ),
    "bad_metadata.not_finite": ("Invalid", "metadata contains a number that JSON does not support"),
    "bad_option.odata": ("Invalid", "{option}: {problem}"),
    "bad_skiptoken": ("Invalid", "$skiptoken is not valid. Use the next link of a response as it is"),
    "bad_skiptoken.other_options": (
        "Invalid",
        "$skiptoken belongs to another search. Use the next link of a response as it is, or leave $skiptoken out",
    ),
    "bad_order": ("Invalid", "dedup_order_by: column {name!r} has type {data_type}, which has no order"),
    "bad_parameter.required_not_boolean": ("Invalid", "required must be true or false"),
    "bad_parameter.not_a_list": ("Invalid", "parameters must be a list of objects with name and type"),
    "bad_parameter_name": (
        "Invalid",
        "Invalid parameter name: use 1 to 128 letters, digits and _, and start with a letter or _",
    ),
    "bad_parameter_type": ("Invalid", "The type of a parameter must be one of {valid}"),
    "bad_patch.too_deep": ("Invalid", "The document would have more than {max_depth} levels"),
    "bad_patch.not_an_array": ("Invalid", "A JSON Patch must be an array of operations"),
    "bad_patch.too_many_operations": (
        "Invalid",
        "The patch has {count:,} operations. At most {max_operations:,} are allowed",
    ),
    "bad_patch.operation": ("Invalid", "Operation {number}: {problem}"),
    "bad_payload.not_an_object": ("Invalid", "The body must be a JSON object: {expected}"),
    "bad_payload.transition": (
        "Invalid",
        "A transition must be an object with the members to, version and, optionally, reason",
    ),
    "bad_pipeline": ("Invalid", "The pipeline has {count}. The first is at {pointer}"),
    "bad_query_name": ("Invalid", "name must not contain {character!r}, because it is part of URLs"),
    "bad_row_ids": ("Invalid", "Row ids must be 64-bit integers without NULL"),
    "bad_schema_id": ("Invalid", "returns_schema_id must be the UUID of a schema, or {query_returns}<UUID>"),
    "bad_schema_type.other_type": (
        "Invalid",
        "Type {gts_id} is not a result schema type. Use {base} or a type derived from it",
    ),
    "bad_selector": ("Invalid", "Invalid filter expression: {problem}"),
    "bad_state.initial": (
        "Invalid",
        "The initial state of a {subject} must be ACTIVE or DRAFT. Use transitions for other states",
    ),
    "bad_state.transition": ("Invalid", "to must be one of {valid}"),
    "bad_text": ("Invalid", "{subject} must not contain NUL or an unpaired surrogate"),
    "bad_token.bad_subject": (
        "Unauthenticated",
        "The token claim sub must be a string of 1 to {max_length} characters",
    ),
    "bad_token.bad_tenant": ("Unauthenticated", "The token claim tenant_id must be a UUID"),
    "bad_token.bad_roles": ("Unauthenticated", "The token claim roles must be a list"),
    "bad_value": ("Invalid", "Expected {expected}"),
    "bad_yaml.too_large": ("Invalid", "{subject} exceeds the limit of {max_bytes:,} bytes for YAML"),
    "bad_yaml.not_utf8": ("Invalid", "{subject} is not valid UTF-8"),
    "bad_yaml.character": ("Invalid", "{subject} is not valid YAML: {problem} at line {line}"),
    "bad_yaml.syntax": ("Invalid", "{subject} is not valid YAML: {problem}"),
    "bad_yaml.bad_number": ("Invalid", "{subject} contains a number that is too long or an invalid \\U escape"),
    "column_mismatch.count": ("Invalid", "column mismatch: table has {table_count} columns, input has {input_count}"),
    "column_mismatch.name": (
        "Invalid",
        "column mismatch: column {position} is {table_name!r} in the table, {input_name!r} in the input",
    ),
    "column_mismatch.type": (
        "Invalid",
        "column mismatch: column {name!r} is {expected} in the table, {actual} in the input",
    ),
    "column_mismatch.unknown": ("Invalid", "column mismatch: the table has {columns}, and no {column!r}"),
    "duplicate_column_name": (
        "Invalid",
        "Duplicate column names {first!r} and {second!r} (letter case is ignored). Rename one of them",
    ),
    "duplicate_parameter_name": (
        "Invalid",
        "Duplicate parameter name {name!r}. Names that differ only in case are duplicates",
    ),
    "duplicate_keys": (
        "Invalid",
        "The source has {rows:row} with duplicate keys, for example {example}. Use strategy 'deduplicate' or remove the duplicates",
    ),
    "extra_columns.append": (
        "Invalid",
        "The dataset does not have the columns {extra}. It has {names}. `penstock dataset alter` adds columns",
    ),
    "extra_columns.merge": (
        "Invalid",
        "The target does not have the source columns {extra}. It has {names}. To add columns, use add_columns=True or --add-columns",
    ),
    "illegal_transition": (
        "Unsupported",
        "A {subject} cannot change from {current} to {to}. Possible states: {possible}",
    ),
    "missing_column.append": ("Invalid", "Column {name!r} is required, but the rows do not have it"),
    "missing_column.merge": (
        "Invalid",
        "Column {name!r} is required, but the source does not have it, so new rows cannot be inserted",
    ),
    "missing_member.blank_name": ("Invalid", "name must not be blank"),
    "missing_member.schema_name": ("Invalid", "Schema name is required"),
    "missing_member.required": ("Invalid", "{member} is required"),
    "missing_member.blank_sql": ("Invalid", "sql must contain a SELECT"),
    "missing_columns.dataset": ("Invalid", "A dataset needs at least one column"),
    "histogram_not_supported": (
        "Invalid",
        "Column {name!r} has type {data_type}, which has no histogram. Numbers, dates, timestamps, text and booleans have one",
    ),
    "missing_key_column": ("Invalid", "The {side} does not have the key columns {keys}. It has {names}"),
    "missing_role": ("Forbidden", "The token grants no Penstock role. It needs one of {roles}"),
    "column_not_found.bind": ("Invalid", "Column {name!r} not found. The dataset has {names}"),
    "column_not_found.alter": ("Invalid", "Column {name!r} not found. The dataset has {names}"),
    "column_not_found.order_by": (
        "Invalid",
        "dedup_order_by: the source does not have the columns {unknown}. It has {names}",
    ),
    "not_text.value": ("Invalid", "{subject} must be a string"),
    "not_wider": (
        "Invalid",
        "Column {name!r} cannot change from {narrow} to {wide}, which cannot hold all its values. Integers widen to larger integers, float to double, decimals to more digits",
    ),
    "null_in_required_column.batch": (
        "Invalid",
        "Column {name!r} is required, but has no value in {null_count:,} of {rows:row}",
    ),
    "null_keys": ("Invalid", "The {side} has NULL in key columns: {columns}. Remove these rows or fill in the key"),
    "unexpected_order": (
        "Invalid",
        "dedup_order_by requires strategy 'deduplicate'. Strategy {strategy!r} does not use it",
    ),
    "output_needed": (
        "Invalid",
        "The working dataset is pinned to version {base}, but version {newest} is the newest, so the result would undo the versions in between. Name an output dataset or remove the version",
    ),
    "patch_test_failed": (
        "Conflict",
        "Operation {number}: the value at '{pointer}' differs from the value that the patch expects",
    ),
    "read_only_state.some": ("Unsupported", "The {subject} is {state}. In this state only {editable} can change"),
    "required_with_default": ("Invalid", "A parameter with a default cannot be required. Remove one of them"),
    "reserved_column_name": (
        "Invalid",
        "Column name {name!r} is reserved: rowid and _rowid hold the row ids. Rename the column",
    ),
    "reserved_parameter_name": ("Invalid", "Parameter name {name!r} is reserved. Choose another name"),
    "role_too_low": ("Forbidden", "This operation requires the role {required_role}. {caller} has the role {role}"),
    "immutable_state": ("Invalid", "The state {state} cannot be changed here. Use POST …/transitions"),
    "text_too_long": ("Invalid", "{subject} has {length:,} characters. At most {max_length:,} are allowed"),
    "too_many_columns": ("Invalid", "The schema has {count:,} columns. At most {max_columns:,} are allowed"),
    "too_many_parameters": ("Invalid", "The query has {count:,} parameters. At most {max_parameters} are allowed"),
    "type_mismatch.append": (
        "Invalid",
        "Column {name!r} has type {expected}, but the rows have {actual}. Cast them to {expected}",
    ),
    "type_mismatch.merge": (
        "Invalid",
        "Column {name!r} has type {expected} in the target and {actual} in the source, and no type holds both. Cast the source column to {expected}",
    ),
    "unsupported_type.advice": ("Invalid", "Column {name!r}: a dataset cannot store type {data_type}: {advice}"),
    "unsupported_type.only_null": (
        "Invalid",
        "Column {name!r} of the source contains only NULL, so its type is unknown. Cast it to its intended type",
    ),
    "unknown_field": ("Invalid", "{option}: unknown field {field!r}. Valid fields: {available}"),
    "unknown_member.schema": ("Invalid", "Unknown member {member!r} of a schema. Valid members: {valid}"),
    "unknown_member.object": ("Invalid", "Unknown member {member!r}. Valid members: {valid}"),
    "unknown_operation.pipeline": ("Invalid", "Unknown operation {type}. Valid types: {types}"),
    "unknown_option": ("Invalid", "Unknown query option {option!r}. Valid options: {valid}"),
    "unknown_strategy": ("Invalid", "Unknown merge strategy {strategy!r}. Valid strategies: {valid}"),
    "unknown_type.type_name": ("Invalid", "Unknown type {text}. Valid types: {valid}, decimal(p,s), list<…>"),
    "value_does_not_fit.cast": (
        "Invalid",
        "Column {name!r}: a value of type {actual} does not fit {expected}: {cause}",
    ),
    "bad_schema_type.instance": ("Invalid", "{gts_id} is an instance. The id of a type ends with '~'"),
    "bad_schema_type.too_long": (
        "Invalid",
        "Type {gts_id} has {length} characters. A schema type has at most {max_length}",
    ),
    "read_only_state.all": ("Unsupported", "The {subject} is {state}. It cannot be changed in this state"),
    "bad_fields": ("Invalid", "fields must be an array of field definitions"),
    "bad_field.not_an_object": ("Invalid", "A field must be an object with name and type"),
    "bad_field.not_a_boolean": ("Invalid", "{member} must be true or false"),
    "bad_row": ("Invalid", "A row must be an object"),
    "mixed_types": ("Invalid", "Field '{name}' has values of type {types} in these rows. A field has one type"),
    "missing_fields": ("Invalid", "At least one field is required"),
    "too_many_fields": ("Invalid", "The schema has {count:,} fields. At most {max_fields:,} are allowed"),
    "bad_field_name.missing": ("Invalid", "A field needs a name"),
    "bad_field_name.characters": (
        "Invalid",
        "Invalid field name '{name}': use 1 to 128 letters, digits and _, and start with a letter or _",
    ),
    "duplicate_field_name": ("Invalid", "Duplicate field name {name!r}"),
    "non_scalar_field.missing_type": (
        "Invalid",
        "Only scalar types allowed in query returns: a field needs a type, one of {valid}",
    ),
    "non_scalar_field.missing_items": (
        "Invalid",
        "Only scalar types allowed in query returns: an array needs items, the scalar type of its values",
    ),
    "bad_field_type.unexpected_items": ("Invalid", "items is allowed only with type array"),
    "bad_description.too_long": ("Invalid", "description must be a string of at most {max_length:,} characters"),
    "bad_description.characters": ("Invalid", "description must not contain NUL or an unpaired surrogate"),
    "unknown_member.field": ("Invalid", "Unknown field members: {unknown}. Valid members: {valid}"),
    "non_scalar_field": (
        "Invalid",
        "Only scalar types allowed in query returns: {subject} is {actual}; use {valid}, or an array of one of them",
    ),
    "undeclared_parameter": ("Invalid", "The SQL uses ${name}, which parameters does not declare"),
    "unused_parameter": ("Invalid", "The SQL does not use ${name}"),
    "bad_parameter.not_an_object": ("Invalid", "A parameter must be an object with name and type"),
    "bad_query": ("Invalid", "{pointer}: {message}{more}"),
    "bad_placeholders": ("Invalid", "{pointer}: {message}{more}"),
    "bad_parameter.several": ("Invalid", "{pointer}: {message}{more}"),
    "bad_parameters": ("Invalid", "{message}{more}"),
    "unknown_parameter.query_without_parameters": (
        "Invalid",
        "Unknown parameter '{name}'. The query has no parameters",
    ),
    "query_archived": ("Unsupported", "The query {name!r} is ARCHIVED and cannot run. An admin may restore it"),
    "immutable_type_id": ("Invalid", "type_id is {type_id} and cannot be changed"),
    "unknown_parameter.of_query": ("Invalid", "Unknown parameter '{name}'. Valid parameters: {valid}"),
    "missing_parameter.of_query": ("Invalid", "Parameter {name} is required: {expected}"),
    "bad_value.parameter": ("Invalid", "Parameter {name}: expected {expected}"),
    "unknown_member.patch": ("Invalid", "Remove this member. A patch may contain {members} and version"),
    "unknown_member.required": ("Invalid", "Member {member!r} cannot be removed. Valid members of a patch: {valid}"),
    "too_many_values": ("Invalid", "The JSON text has more than {limit:,} values. Send it in parts"),
    # catalog
    "bad_database_url.driver": (
        "Invalid",
        "Unsupported database {driver!r}. Use postgresql://… or sqlite:///file",
    ),
    "bad_database_url.syntax": (
        "Invalid",
        "The database URL cannot be parsed. Use the form postgresql://user@host/name",
    ),
    "commit_lost": (
        "Conflict",
        "The database connection was lost before the commit. Nothing was written. Retry",
    ),
    "commit_unanswered": (
        "CommitStateUnknown",
        "The database did not answer COMMIT: {cause}",
    ),
    "database_busy.pool": (
        "Unavailable",
        "Too many concurrent uses of the catalog in this process. Retry",
    ),
    "database_busy.lock": (
        "Unavailable",
        "Another process holds the write lock of the catalog. Retry",
    ),
    "database_unavailable": (
        "Unavailable",
        "The database is not available: {cause}",
    ),
    "dataset_exists": (
        "AlreadyExists",
        "Dataset {name!r} already exists",
    ),
    "dataset_in_use": (
        "Unsupported",
        "Registered queries that read {dataset}: {names}. Change or delete them first, or drop the dataset with force",
    ),
    "dataset_locked.by_writer": (
        "Conflict",
        "Another writer has locked dataset {name}. Retry later",
    ),
    "dataset_not_found": (
        "NotFound",
        "Dataset {dataset!r} not found",
    ),
    "key_reused": (
        "AlreadyExists",
        "The idempotency key {key!r} was used for another request. Use a new key",
    ),
    "lease_ended": (
        "Conflict",
        "The writer lease ended because there was no heartbeat for {lease_timeout}. Start the write again",
    ),
    "missing_app_role": (
        "Unsupported",
        "The database login cannot use the role {app_role}. Run `penstock migrate` as the owner, and GRANT {app_role} TO the login",
    ),
    "missing_extra": (
        "Unsupported",
        "The package {package} is not installed. Install it with: pip install 'penstock[{extra}]'",
    ),
    "missing_postgres_driver": (
        "Invalid",
        "The PostgreSQL driver is not installed. Run pip install 'penstock[postgres]'",
    ),
    "not_migrated": ("Unsupported", "The database has no Penstock catalog. Run `penstock migrate`"),
    "catalog_too_old": (
        "Unsupported",
        "The catalog was created by a development version (migration {applied}). It cannot be migrated. Create a new workspace and import the data again",
    ),
    "other_migration": (
        "Unsupported",
        "The catalog is at migration {applied}, but this version of Penstock needs {current}. Run `penstock migrate`, or update Penstock if the catalog is newer",
    ),
    "overtaken": (
        "Conflict",
        "Another transaction committed first. Retry",
    ),
    "pipeline_changed": (
        "Conflict",
        "The pipeline was changed and is at version {version}. Read it again and repeat the change",
    ),
    "pipeline_name_taken": (
        "AlreadyExists",
        "A pipeline named {stripped!r} already exists",
    ),
    "pipeline_name_taken.undelete": (
        "AlreadyExists",
        "The deletion cannot be undone: another pipeline is named {stripped!r}. Rename or delete it first",
    ),
    "pipeline_not_deleted": ("Unsupported", "The pipeline is not deleted, so its deletion cannot be undone"),
    "pipeline_not_found": (
        "NotFound",
        "Pipeline not found",
    ),
    "query_changed": (
        "Conflict",
        "The query was changed and is at version {version}. Read it again and repeat the change",
    ),
    "query_name_taken": (
        "AlreadyExists",
        "A query named {stripped!r} already exists",
    ),
    "query_name_taken.undelete": (
        "AlreadyExists",
        "The deletion cannot be undone: another query is named {stripped!r}. Rename or delete it first",
    ),
    "query_not_deleted": ("Unsupported", "The query is not deleted, so its deletion cannot be undone"),
    "query_not_found": (
        "NotFound",
        "Query not found",
    ),
    "read_only.write": (
        "Unsupported",
        "Dataset {name} is read-only",
    ),
    "app_role_too_privileged": (
        "Unsupported",
        "The role {app_role} is a superuser or has BYPASSRLS and could read every tenant. Run ALTER ROLE {app_role} NOSUPERUSER NOBYPASSRLS",
    ),
    "run_lost": (
        "Unavailable",
        "The process that executed the run ended or stopped sending heartbeats. Nothing was written. Start the run again",
    ),
    "run_not_found": (
        "NotFound",
        "Run not found",
    ),
    "schema_changed": (
        "Conflict",
        "The schema was changed and is at version {version}. Read it again and repeat the change",
    ),
    "schema_in_use": (
        "Conflict",
        "Queries that refer to the schema: {count:,}. Change or delete them first",
    ),
    "schema_referenced_by_archived_queries": (
        "Conflict",
        "Archived queries that reference the schema: {query_count:,}. Delete them first",
    ),
    "schema_name_taken": (
        "AlreadyExists",
        "A schema named {stripped!r} already exists",
    ),
    "schema_name_taken.undelete": (
        "AlreadyExists",
        "The deletion cannot be undone: another schema is named {stripped!r}. Rename or delete it first",
    ),
    "schema_not_active": (
        "Unsupported",
        "The schema is {state}. A query can only refer to an ACTIVE schema",
    ),
    "schema_not_deleted": ("Unsupported", "The schema is not deleted, so its deletion cannot be undone"),
    "schema_not_live.archived": (
        "Unsupported",
        "The result schema of the query is ARCHIVED. Change its state to DEPRECATED first (schema id {schema_id})",
    ),
    "schema_not_live.deleted": (
        "Unsupported",
        "The result schema of the query is deleted. Undo the deletion of the schema first (schema id {schema_id})",
    ),
    "schema_not_found": (
        "NotFound",
        "Schema not found",
    ),
    "deleted_rows_in_files": (
        "Unsupported",
        "{files:,} data files of {name} contain {rows:,} deleted rows, which other readers would read. "
        "Compact the dataset first, or read it with scan()",
    ),
    "row_conflict": (
        "Conflict",
        "{author} changed {count:,} of the same rows of {name}{rows} in a version up to {version}. "
        "Read them again and retry",
    ),
    "stale_version": (
        "Conflict",
        "{name} is no longer at version {base}: {author} committed version {version} ({operation}). Read it again and retry",
    ),
    "too_many_transactions": (
        "Invalid",
        "{active:,} transactions are open. The limit is {max_active:,}. Commit or roll back some of them",
    ),
    "transaction_not_found": (
        "NotFound",
        "Transaction not found",
    ),
    "deleted_rows_swept": (
        "NotFound",
        "The delete with this idempotency key was committed: it deleted {count:row} of {name}, as version {version}. Its rows "
        "cannot be returned again, because version {before} was swept. Repeat the delete without RETURNING for its receipt",
    ),
    "unknown_outcome": (
        "CommitStateUnknown",
        "The database did not answer, so the outcome of the write is unknown. Send it again with the idempotency key {key!r}: it is executed at most once",
    ),
    "version_not_found.not_yet_created": (
        "NotFound",
        "Dataset {name} did not exist {point}",
    ),
    "version_not_found.swept": (
        "NotFound",
        "Version {number} of {name} was swept",
    ),
    "version_not_found.unavailable": (
        "NotFound",
        "Version {version} of {name} {problem}. The newest version is {newest}",
    ),
    "version_not_found.query": (
        "NotFound",
        "The query has no version {number}",
    ),
    "version_not_found.schema": (
        "NotFound",
        "The schema has no version {number}",
    ),
    "statement_timed_out": (
        "Unavailable",
        "The catalog took too long to answer. Narrow the filter, or retry later",
    ),
    # storage
    "bad_partition.bytes": (
        "Invalid",
        "Bytes cannot be a partition value. Cast the partition column to string",
    ),
    "bad_partition.length": (
        "Invalid",
        "{text!r} cannot be a partition value. Partition values have 1 to {max_length} characters, or are NULL",
    ),
    "bad_path": (
        "Invalid",
        "The path is outside of the workspace",
    ),
    "batch_too_large.arrow": (
        "Invalid",
        "{name}: a batch has more than {max_bytes:,} bytes after decompression",
    ),
    "broken_file.dangling_link": (
        "Invalid",
        "{path} is a symbolic link to a file that does not exist. Remove the link, or restore the file",
    ),
    "broken_file.no_columns": (
        "Invalid",
        "{path} is a Parquet file without columns. Remove it from the directory",
    ),
    "broken_file.not_utf8": (
        "Invalid",
        "Cannot read {name}: column {column!r} is not UTF-8 text",
    ),
    "broken_file.open": (
        "Invalid",
        "Cannot open {file}: {error}",
    ),
    "broken_file.parquet": (
        "Invalid",
        "{path} is not a readable Parquet file: {error}",
    ),
    "broken_file.read": (
        "Invalid",
        "Cannot read {name}: {error}{hint}",
    ),
    "broken_journal.outside": (
        "Invalid",
        "The journal of {root} names a file outside of the directory",
    ),
    "broken_journal.unreadable": (
        "Invalid",
        "Cannot read the journal {path}: {cause}. If a newer version of Penstock wrote it, recover with that version",
    ),
    "cannot_write_directory.lock": (
        "Unavailable",
        "Cannot change {target}: {error}",
    ),
    "cannot_write_directory.unchanged": (
        "Unavailable",
        "Cannot write {target}: {error}. Nothing was changed",
    ),
    "cannot_write_file": (
        "Unavailable",
        "Cannot write {path}: {error}",
    ),
    "directory_busy": (
        "Unavailable",
        "Another merge into {target} has been running for {wait:.0f} s. Retry later",
    ),
    "directory_replaced": (
        "Conflict",
        "A merge into {target} was interrupted, and the directory was replaced since. Remove {work_folder} to abandon that merge",
    ),
    "directory_unreadable": (
        "Unavailable",
        "Cannot read {path}: {error}. Correct its permissions or move it out of the directory. Nothing was changed",
    ),
    "file_exists": (
        "AlreadyExists",
        "{file} already exists. Use --force to replace it",
    ),
    "file_missing.directory": (
        "Unavailable",
        "{path} was removed while the directory was read. Retry",
    ),
    "file_missing.data_file": (
        "Unavailable",
        "A data file is missing. It was swept while it was read, or removed from the workspace",
    ),
    "file_damaged.object": (
        "Unavailable",
        "{path} does not have the size and checksum of its commit in the object store. Restore it from a backup or an earlier version of the object",
    ),
    "file_unreadable": (
        "Unavailable",
        "A data file cannot be read. Run `penstock doctor --verify` to find it",
    ),
    "foreign_journal": (
        "Invalid",
        "{work_folder} belongs to another user. That user must finish the merge, or remove the folder",
    ),
    "linked_folder": (
        "Invalid",
        "{folder}/{link} is a symbolic link. Name the directory that it points to",
    ),
    "merge_interrupted.pending": (
        "Unavailable",
        "A merge into {target} was interrupted. Run a merge or `penstock merge --recover {target}` to finish it",
    ),
    "merge_interrupted.journaled": (
        "Unavailable",
        "The merge is recorded in {journal}, but could not be finished: {error}. Fix the cause, then run a merge or `penstock merge --recover {target}`",
    ),
    "mixed_directory": (
        "Invalid",
        "{name} does not match the schema of the files before it: {error}",
    ),
    "mixed_partitions": (
        "Invalid",
        "The folders of the directory have different partition columns: {layouts}",
    ),
    "column_not_found.csv": (
        "Invalid",
        "{name} has no column {column!r} (from --type)",
    ),
    "file_not_found.input": (
        "NotFound",
        "File {file} not found",
    ),
    "not_a_directory": (
        "Invalid",
        "{path} is a file. Name the directory that contains the Parquet files",
    ),
    "not_a_file.special": (
        "Invalid",
        "{file} is neither a file nor a folder. Save its content to a file",
    ),
    "not_a_file.folder": (
        "Invalid",
        "{file} is a folder. Only Parquet files are read from a folder. Name the files",
    ),
    "not_a_file.output": (
        "Invalid",
        "{file} is not a regular file and cannot be replaced. Choose another name",
    ),
    "not_a_plain_directory": (
        "Invalid",
        "{path} is managed by {owner} and cannot be merged into directly",
    ),
    "not_in_csv": (
        "Invalid",
        "CSV cannot store column {name!r} ({type}). Leave it out, or use parquet or jsonl",
    ),
    "partitioned_folder": (
        "Invalid",
        "{file} stores a column in its folder names ({partition}), which is not supported. Write it without partitions first",
    ),
    "bad_store_options.unknown": (
        "Invalid",
        "PENSTOCK_STORE_OPTIONS: unknown option {key!r}. Use the configuration keys of object_store, such as access_key_id, secret_access_key, region, endpoint",
    ),
    "bad_store_options.value": (
        "Invalid",
        "PENSTOCK_STORE_OPTIONS: an option has an invalid value ({error})",
    ),
    "bad_store_options.no_url": (
        "Invalid",
        "PENSTOCK_STORE_OPTIONS is set, but the workspace has no object store. Set PENSTOCK_STORE",
    ),
    "bad_store_url": (
        "Invalid",
        "The URL of the store must have the form scheme://bucket/prefix, without credentials and parameters. Schemes: {schemes}. Set credentials with PENSTOCK_STORE_OPTIONS",
    ),
    "unsupported_store.hdfs": (
        "Unsupported",
        "hdfs:// is not supported as a store. Mount the file system as a folder, or use a bucket",
    ),
    "store_forked": (
        "Unavailable",
        "This process was forked from one that uses the object store, which cannot be used here. Start processes with `spawn` or `forkserver`",
    ),
    "store_refused.denied": (
        "Unavailable",
        "The object store refused a request. Grant the credentials permission to read, write, list and delete objects below the prefix of the store",
    ),
    "store_refused.wrong_key": (
        "Unavailable",
        "The object store does not accept the access key or its secret. Correct PENSTOCK_STORE_OPTIONS",
    ),
    "store_refused.expired": (
        "Unavailable",
        "The credentials of the object store have expired. Renew them",
    ),
    "store_refused.no_credentials": (
        "Unavailable",
        "There are no credentials for the object store. Set PENSTOCK_STORE_OPTIONS, the environment variables of its service, or an identity of the machine",
    ),
    "store_refused.clock_skew": (
        "Unavailable",
        "The object store refused a request because the clock of this machine is wrong. Synchronize it",
    ),
    "store_bucket_missing": (
        "Unavailable",
        "The bucket of the store does not exist. Create it, or correct PENSTOCK_STORE",
    ),
    "store_busy": (
        "Unavailable",
        "The object store limits the rate of requests. Retry later",
    ),
    "store_unavailable": (
        "Unavailable",
        "The object store cannot be reached or did not answer in time. Retry later",
    ),
    "store_has_local_files": (
        "Invalid",
        "{folder} has data files of its own, which are not in the bucket. Use a new folder, or unset PENSTOCK_STORE",
    ),
    "store_not_initialized": (
        "NotFound",
        "The bucket contains no workspace below the prefix of the store. Create it with `penstock init --store`",
    ),
    "store_of_other_workspace": (
        "AlreadyExists",
        "The bucket contains the workspace of tenant {tenant} below the prefix of the store. Choose another prefix, or initialize a new folder to join the workspace",
    ),
    "store_marker_broken": (
        "Invalid",
        "The object penstock.json below the prefix of the store is not that of a workspace. Choose another prefix",
    ),
    "store_needs_shared_catalog": (
        "Invalid",
        "The bucket contains the workspace of tenant {tenant}, whose catalog is not in this folder. Set PENSTOCK_DATABASE_URL to its database",
    ),
    "store_of_other_catalog": (
        "Invalid",
        "The bucket contains data files of tenant {tenant}, and the catalog has no commit of it. Set PENSTOCK_DATABASE_URL to the database of the workspace",
    ),
    "cache_full.file": (
        "Unavailable",
        "A data file of {size:,} bytes does not fit into the cache of {max_bytes:,} bytes. Increase PENSTOCK_CACHE_BYTES",
    ),
    "cache_full.files": (
        "Unavailable",
        "The operation needs data files of {size:,} bytes at once, and the cache has {max_bytes:,} bytes. Increase PENSTOCK_CACHE_BYTES",
    ),
    "cache_full.pinned": (
        "Unavailable",
        "The cache of {max_bytes:,} bytes is full of data files in use. Retry later, or increase PENSTOCK_CACHE_BYTES",
    ),
    "storage_failed.unreadable": (
        "Unavailable",
        "A file that was just written cannot be read: {path}",
    ),
    "storage_failed.file_system": (
        "Unavailable",
        "File system error: {error} ({path})",
    ),
    "storage_failed.spool": (
        "Unavailable",
        "Cannot write temporary rows: {error}",
    ),
    "type_mismatch.partition": (
        "Invalid",
        "Column {name!r} is {data_type} in the source, but the directory has folders such as {name}={value}. Cast the source column to string",
    ),
    "types_not_allowed": (
        "Invalid",
        "{name}: --type is not allowed. A {format} file defines the types of its columns",
    ),
    "unknown_format": (
        "Invalid",
        "{name}: unknown file format. Set it with --format ({formats})",
    ),
    # engines
    "bad_option.search": ("Invalid", "$search is not supported for query results. Use contains() in $filter"),
    "field_mismatch.missing": (
        "Unsupported",
        "Cannot filter or order by {field!r}: the schema requires the field, but the result does not have it",
    ),
    "field_mismatch.type": (
        "Unsupported",
        "Cannot filter or order by {field!r}: its declared type is {declared_type}, but the result has {data_type}",
    ),
    "codec_not_for_engine": (
        "Unsupported",
        "Spark cannot write Parquet files with codec {codec!r}. Use one of {codecs}, or engine 'pyarrow'",
    ),
    "file_damaged": ("Unavailable", "{path} is damaged: {cause}. Restore the file, or remove it"),
    "file_failed": ("Unavailable", "Cannot read or write {path}: {cause}"),
    "java_too_old": (
        "Unavailable",
        "Found Java {java}, but Spark needs Java {oldest} to {newest}. Install it (apt-get install openjdk-{oldest}-jre-headless) and set JAVA_HOME to its folder",
    ),
    "missing_java": (
        "Unavailable",
        "Cannot start the Java process of Spark: {cause}. Spark needs Java {oldest} to {newest} on the PATH or in JAVA_HOME (apt-get install openjdk-{oldest}-jre-headless)",
    ),
    "unsupported_source.streaming_frame": (
        "Invalid",
        "Cannot merge a streaming DataFrame, which has no end. Merge its batches in foreachBatch",
    ),
    "spark_start_failed": (
        "Unavailable",
        "Cannot start Spark with master {master!r}: {cause}. Check PENSTOCK_SPARK_MASTER and PENSTOCK_SPARK_CONF, and that the master is running and reachable",
    ),
    "null_in_required_column.frame": (
        "Invalid",
        "Column {name!r} is required, but {count:row} of the source have no value",
    ),
    "null_in_required_column.append": (
        "Invalid",
        "Column {column!r} is required, but a row of the source has no value. Select only rows that have one",
    ),
    "out_of_memory": ("Unavailable", "DuckDB exceeded its memory limit: {cause}"),
    "source_failed": ("Invalid", "Cannot read the DataFrame: {cause}"),
    "spark_connect": (
        "Unsupported",
        "Sessions of Spark Connect ({module}) are not supported. Use a classic session, or pass the rows as an Arrow table",
    ),
    "spark_connect.master": (
        "Unsupported",
        "Spark Connect is not supported, but {setting} is {value!r}. Use a classic master (local[*], spark://host:7077, yarn, k8s://…) and unset SPARK_REMOTE",
    ),
    "spark_failed": ("Unavailable", "A Spark job failed: {cause}"),
    "spark_lost": (
        "Unavailable",
        "The Java process of Spark ended unexpectedly, most often because it was out of memory. Set a larger spark.driver.memory in PENSTOCK_SPARK_CONF, or retry",
    ),
    "storage_failed.duckdb": ("Unavailable", "DuckDB cannot read or write a file: {cause}"),
    "unsupported_type.frame": (
        "Invalid",
        "Column {name!r} has the unsupported Spark type {data_type}. Cast it to another type",
    ),
    "value_does_not_fit.append": (
        "Invalid",
        "Column {column!r}: a value has more digits than the type of the working dataset allows. Give the column a wider type, or select other rows",
    ),
    "value_does_not_fit.frame": ("Invalid", "A value of the source does not fit the type of the target: {cause}"),
    "value_does_not_fit.duckdb": ("Invalid", "DuckDB cannot convert a value: {cause}"),
    # service
    "bad_execution_id": ("Invalid", "The header x-execution-id must be one UUID, in lower case with hyphens"),
    "execution_exists": (
        "AlreadyExists",
        "An execution with the id {execution_id} is active. Choose another id, or wait until it ends",
    ),
    "execution_not_found": ("NotFound", "No active execution has this id. It may have ended"),
    "bad_authorization.several_headers": (
        "Unauthenticated",
        "The request has more than one Authorization header. Send exactly one",
    ),
    "bad_authorization.format": ("Unauthenticated", 'The Authorization header must have the form "Bearer <token>"'),
    "bad_idempotency_key.format": ("Invalid", "The idempotency key must have 1 to {max_length} printable characters"),
    "bad_idempotency_key.generated_prefix": (
        "Invalid",
        "Idempotency keys that start with {prefix!r} are generated by Penstock. Choose another key",
    ),
    "bad_jwks_url": ("Invalid", "The JWKS URL must be an http or https URL without a user name and password"),
    "bad_limit": ("Invalid", "Invalid limit {limit}. Request 1 to {max_versions:,} versions at once"),
    "bad_retention.days": ("Invalid", "Cannot retain versions for {days} days. The number of days must be 0 or more"),
    "bad_retention.versions": (
        "Invalid",
        "Cannot retain {versions} versions. The number of versions must be 1 or more, because the newest version is always retained",
    ),
    "operator_required": (
        "Forbidden",
        "Only the command line on the machine of the workspace can sweep another tenant ({tenant})",
    ),
    "tenant_not_found": (
        "NotFound",
        "Tenant {tenant} not found. The id of a tenant is the name of its folder below data",
    ),
    "bad_secret": ("Invalid", "The JWT secret must be plain text, not a key, a certificate or a JWK"),
    "bad_sql.unnamed_parameter": (
        "Invalid",
        "The parameter ${parameter} has no name. Use named parameters such as $region instead of ? or $1",
    ),
    "bad_sql.table_function": (
        "Invalid",
        "The table function {name!r} is not allowed in a query. Allowed table functions: {allowed}",
    ),
    "bad_sql.function": ("Invalid", "The function {name!r} is not allowed in a query"),
    "bad_sql.too_long": ("Invalid", "The statement has {characters:,} characters. The limit is {limit:,}"),
    "bad_sql.invalid_characters": ("Invalid", "The statement contains a NUL character or an unpaired surrogate"),
    "bad_sql.syntax": ("Invalid", "Cannot parse the statement: {cause}"),
    "bad_sql.too_deep": ("Invalid", "The statement is nested too deeply. Split it with WITH clauses"),
    "bad_sql.version": (
        "Invalid",
        "The version of a dataset must be a whole number, for example: finance.tx AS t AT (VERSION => 3)",
    ),
    "bad_token.times": ("Unauthenticated", "The token claims exp, nbf and iat must be numbers of seconds since 1970"),
    "bad_token.not_printable": ("Unauthenticated", "The token claims iss and sub must be printable text"),
    "bad_token.too_long": ("Unauthenticated", "The token is longer than {max_length:,} characters"),
    "bad_token.critical_extensions": (
        "Unauthenticated",
        "The token has critical extensions (crit), which are not supported",
    ),
    "bad_token.key_id": (
        "Unauthenticated",
        "The key id (kid) of the token must be a string of 1 to {max_length} characters",
    ),
    "bad_token.unreadable": ("Unauthenticated", "The token is not a valid JWT"),
    "bad_token.missing_claims": (
        "Unauthenticated",
        "The token must have the claim exp, and iss and aud if the server requires them",
    ),
    "bad_signature": ("Unauthenticated", "The signature of the token does not match its key"),
    "wrong_issuer": ("Unauthenticated", "The token was issued by another issuer"),
    "wrong_audience": ("Unauthenticated", "The token is intended for another audience"),
    "read_only.dataset": ("Unsupported", "Dataset {name} is read-only"),
    "file_not_found.parquet_folder": ("NotFound", "Folder {folder} contains no Parquet files"),
    "bad_ttl": ("Invalid", "Invalid lifetime {ttl} of a token. It must be positive and at most {max_days:,} days"),
    "bad_version.not_positive": ("Invalid", "version must be a whole number, 1 or higher"),
    "batch_too_large.source": (
        "Invalid",
        "The batch at row {row:,} is larger than {max_bytes:,} bytes. Send smaller batches",
    ),
    "breaking_change": (
        "Conflict",
        "The change is not compatible with the queries that reference the schema ({query_count}). An admin can apply it with force=true",
    ),
    "broken_source": ("Invalid", "Cannot read the source after row {row:,}: {cause}"),
    "built_in_type": ("Unsupported", "A built-in type cannot be changed or deleted"),
    "commit_not_found": ("NotFound", "Commit {commit_no} not found. The newest commit is {newest}"),
    "dataset_locked.lock_timeout": ("Conflict", "Another writer has locked the dataset. Retry later"),
    "dataset_not_found.sql": ("NotFound", "Dataset {dataset!r} not found. Write the name as schema.table"),
    "dataset_dropped": (
        "Conflict",
        "Table {dataset!r} was dropped after this transaction changed it. Nothing was written. Begin a new transaction",
    ),
    "directory_changed": (
        "Conflict",
        "Another process changed {file} during the merge. Nothing was written. Try again",
    ),
    "duplicate_parameter.statement": (
        "Invalid",
        "The parameter {parameter} occurs more than once. Parameter names are not case-sensitive",
    ),
    "duplicate_row_ids": ("Invalid", "row_id {row_id} is given more than once"),
    "empty_path": (
        "Invalid",
        "The target path is empty ({path!r}). Name the directory, or write '.' for the current one",
    ),
    "empty_row_ids": ("Invalid", "row_ids cannot be empty for {verb}"),
    "empty_sample.rows": ("Invalid", "rows must be an array with at least one object"),
    "empty_sample.file": ("Invalid", "The file has no rows, so that no schema can be inferred"),
    "internal_error": ("Unavailable", "Internal error. The server log has the details"),
    "key_with_frame": (
        "Unsupported",
        "An idempotency key cannot be used with a Spark DataFrame, which may return different rows each time. Omit the key, or pass the rows as Parquet",
    ),
    "keys_unavailable": ("Unavailable", "Cannot fetch the keys that verify tokens. Retry later"),
    "missing_parameter": ("Invalid", "Missing value for parameter ${missing}"),
    "naive_time": ("Invalid", "The time {time} has no time zone. Add Z or an offset"),
    "missing_columns.scan": (
        "Invalid",
        "The list of columns is empty. Name at least one column, or omit the list to read all columns",
    ),
    "missing_row_ids.edit": ("Unsupported", "table '{table}' does not support {verb} (no rowid)"),
    "missing_row_ids.scan": ("Unsupported", "Dataset {name} has no row ids"),
    "unsupported_source.list": (
        "Invalid",
        "A list of rows must contain only dicts, or only Arrow tables and batches",
    ),
    "unsupported_source.values": ("Invalid", "Cannot convert the values to a table: {cause}"),
    "unsupported_source.type": (
        "Invalid",
        "Cannot read rows from an object of type {source_type}. Pass an Arrow table, a pandas or Polars frame, a DuckDB relation, a dict of columns, a list of dicts, or the path of a file",
    ),
    "column_not_found.profile": ("Invalid", "Column {column!r} not found. {dataset} has {names}"),
    "column_not_found.scan": ("Invalid", "Column {column!r} not found. {dataset} has {names}"),
    "file_not_found.folder": (
        "NotFound",
        "Folder {file} contains no Parquet files",
    ),
    "missing_token": ("Unauthenticated", 'The request has no token. Send the header "Authorization: Bearer <token>"'),
    "missing_token_key.verifier": (
        "Invalid",
        "Tokens cannot be verified without a key. Set a JWT secret or a JWKS URL",
    ),
    "missing_version": (
        "Invalid",
        "The version is missing. Send the version that you have read, in If-Match or as version in the body",
    ),
    "bad_file_name": (
        "Invalid",
        "The file name {name} is not UTF-8. Rename the file or folder",
    ),
    "bad_file_url": (
        "Invalid",
        "{url} is not the URL of a local directory. Use file:///absolute/path, or a path without file:",
    ),
    "dangling_target": (
        "Invalid",
        "{path} is a symbolic link to {resolved}, which does not exist. Create that directory, or name another target",
    ),
    "not_a_local_file_system.url": (
        "Unsupported",
        "Cannot merge into {path!r}: only local directories are supported. Mount the storage, or use a Penstock dataset",
    ),
    "not_a_local_file_system.type": (
        "Unsupported",
        "Cannot merge through a {filesystem}: the merge needs the atomic renames of a local or mounted file system. Pass the path of a local directory, or use a Penstock dataset",
    ),
    "not_one_select.clause": ("Invalid", "A query may only select from datasets. The clause {clause} is not allowed"),
    "not_one_select.statement": ("Invalid", "A query must be exactly one SELECT statement"),
    "query_cancelled": ("Unsupported", "The query was cancelled. Run it again if you need its result"),
    "query_does_not_fit": (
        "Invalid",
        "The result does not match the schema in {count:field}. First mismatch: {first}{hint}",
    ),
    "query_failed.integer_too_large": (
        "Invalid",
        "The query failed: an integer has more than 38 digits. Cast it to VARCHAR or DOUBLE",
    ),
    "query_failed.crashed": ("Invalid", "The query failed: DuckDB terminated unexpectedly"),
    "query_failed.protocol": ("Invalid", "The query failed: the sandbox returned an invalid result"),
    "query_failed.duckdb": ("Invalid", "The query failed: {cause}"),
    "query_interrupted": ("Unavailable", "The process that ran the query was terminated. Retry later"),
    "query_out_of_memory": (
        "Invalid",
        "The query needs more than {mebibytes:,} MiB of memory. Read fewer rows or columns",
    ),
    "query_timed_out.elapsed": (
        "Invalid",
        "The query took longer than {seconds:g} seconds. Read fewer rows or columns",
    ),
    "query_timed_out.cpu": (
        "Invalid",
        "The query used more than {cpu_seconds:,} seconds of CPU time. Read fewer rows or columns",
    ),
    "query_too_large.result": ("Invalid", "The result of the query exceeds {limit}. Read fewer rows or columns"),
    "query_too_large.deletion_vectors": (
        "Invalid",
        "The deletion vectors of the datasets that the query reads have {bytes:,} bytes; the limit is {limit:,} bytes. "
        "Compact the datasets (penstock dataset compact), or read fewer of them in one query",
    ),
    "query_too_large.files": (
        "Invalid",
        "The list of the files that the query reads has {bytes:,} bytes; the limit is {limit:,} bytes. Compact the datasets "
        "(penstock dataset compact), or read fewer of them in one query",
    ),
    "query_too_large.row": (
        "Invalid",
        "One row exceeds {limit:,} bytes. Select fewer fields, or request the rows as Arrow",
    ),
    "returned_too_large": (
        "Invalid",
        "The returned rows are larger than {max_bytes:,} bytes. Write fewer rows at once, or do not request the rows",
    ),
    "root_directory": ("Invalid", "Cannot merge into the root directory {resolved}. Name a directory below it"),
    "row_count_mismatch.update": ("Invalid", "row_ids count ({ids}) does not match input rows ({rows})"),
    "row_not_found": ("NotFound", "row_id {row_id} not found in table"),
    "schema_too_large": ("Invalid", "The schema exceeds the limit of {limit:,} {unit}. Use fewer or simpler columns"),
    "row_too_large.source": ("Invalid", "The rows from row {row:,} on are larger than {max_bytes:,} bytes each"),
    "run_cancelled": ("Conflict", "The run was cancelled. Nothing was written"),
    "run_over": (
        "Conflict",
        "The worker sent no heartbeat for too long. The run has ended, or another worker has claimed it",
    ),
    "sandbox_down": ("Unavailable", "Queries cannot run now: the sandbox process does not start"),
    "schema_mismatch": (
        "Unsupported",
        "The result of {name!r} does not match its schema: {error_count:error}. First error: {first_error}",
    ),
    "schema_unavailable": (
        "Unsupported",
        "The result schema of the query does not exist, so the result cannot be validated",
    ),
    "service_stopped.during_run": ("Unavailable", "The service was stopped during the run. Start the run again"),
    "service_stopped.submit": ("Unavailable", "The service is shutting down. Submit the run again"),
    "short_secret": ("Invalid", "The JWT secret has {length} bytes. It needs at least {min_length}"),
    "shutting_down": ("Unavailable", "The service is shutting down. Send the insert again later"),
    "token_expired": ("Unauthenticated", "The token has expired. Request a new one"),
    "token_not_yet_valid": ("Unauthenticated", "The token is not valid yet. Check the clocks of both machines"),
    "too_many_runs.queue": (
        "Unavailable",
        "The run queue is full: {queued:run} queued, limit {limit:,}. Retry when some of them have ended",
    ),
    "too_many_runs.tenant": (
        "Unavailable",
        "Your tenant has {queued:run} in the queue, limit {limit:,}. Retry when some of them have ended",
    ),
    "transaction_busy": ("Conflict", "Another operation of this transaction is in progress. Wait until it has ended"),
    "transaction_over.local": ("Unsupported", "This transaction has ended. Begin a new one"),
    "transaction_over.client": ("Unsupported", "This transaction is {state}. Begin a new one"),
    "type_not_for_engine": ("Unsupported", "{problem}. Use engine 'pyarrow', which supports every type"),
    "unknown_codec": ("Invalid", "Unknown compression {compression!r}. Valid values: {codecs}"),
    "unknown_engine": ("Invalid", "Unknown engine {name!r}. Valid engines: {engines}"),
    "unknown_key.ambiguous": ("Unauthenticated", "Several keys match the token. The token must name its key (kid)"),
    "unknown_key.not_found": ("Unauthenticated", "The token is signed with an unknown key"),
    "unknown_parameter.statement": ("Invalid", "The statement has no parameter {parameter}. Its parameters: {valid}"),
    "unknown_role.missing": ("Invalid", "A token needs at least one role. Valid roles: {valid}"),
    "unknown_role.name": ("Invalid", "Unknown role {role!r}. Valid roles: {valid}"),
    "ambiguous_version": ("Invalid", "Specify exactly one of version, commit_no and time"),
    "write_too_large": (
        "Invalid",
        "The rows are larger than {max_bytes:,} bytes, the limit of one write. Split the write",
    ),
    "wrong_algorithm.missing": ("Unauthenticated", "The token does not name its algorithm (alg)"),
    "wrong_algorithm.not_accepted": ("Unauthenticated", "The token is signed with an algorithm that is not accepted"),
    "wrong_algorithm.wrong_key_type": ("Unauthenticated", "The algorithm of the token does not match its key"),
    "memory_exhausted": (
        "Unavailable",
        "The server has too little memory left for {size:,} bytes of this request. Retry later",
    ),
    "server_busy": ("Unavailable", "The server is executing too many requests. Retry later"),
    "tenant_busy": ("Unavailable", "Your tenant or user has too many requests in progress. Retry when some have ended"),
    "tenant_memory_exhausted": (
        "Unavailable",
        "The requests of your tenant or user hold too much memory to add {size:,} bytes. Retry when some have ended",
    ),
    # lake
    "missing_schema.create": ("Invalid", "Cannot create dataset {name!r} without columns. Pass rows, schema=, or both"),
    "unread_dataset.pinned": (
        "Invalid",
        "The query does not read {dataset}, so its version cannot be chosen. Datasets of the query: {datasets}",
    ),
    "immutable_version": (
        "Invalid",
        "The SQL of the query fixes the version of {dataset}, so version {version} cannot be chosen",
    ),
    # rest
    "bad_column": (
        "Invalid",
        "Column {column} must be an object with name, type and, optionally, nullable (true or false)",
    ),
    "bad_condition": ("Invalid", '{header} must be * or a list of ETags in quotes, such as "3"'),
    "bad_json.not_an_object": ("Invalid", "The body must be a JSON object"),
    "bad_member.cluster_by": ("Invalid", "cluster_by must be an array of column names"),
    "bad_member.dataset_flags": ("Invalid", "row_ids and read_only must be true or false"),
    "bad_odata_version": ("Invalid", "{header} must be one version number, such as 4.0"),
    "bad_odata_version.too_low": (
        "Invalid",
        "Responses have OData version {version}. Send {header} {version} or higher, or omit the header",
    ),
    "bad_odata_version.unknown": ("Invalid", "{header} must be one of {valid}"),
    "bad_option.count_in_stream": ("Invalid", "$count is available in JSON responses only"),
    "bad_parameter.columns": ("Invalid", "Parameter {parameter} must be column names separated by commas"),
    "bad_parameter.diff": ("Invalid", "Parameters from and to are required, as in ?from=1&to=2"),
    "bad_parameter.framework": ("Invalid", "Invalid parameter. See `errors` for the details"),
    "bad_parameter.not_a_boolean": ("Invalid", "Parameter {name} must be true or false"),
    "bad_parameter.versions": ("Invalid", "Parameter versions must have the form schema.table:3, separated by commas"),
    "bad_parameter.not_an_integer": ("Invalid", "Parameter {name} must be a whole number, 0 or higher"),
    "bad_request": ("Invalid", "The request is not a valid HTTP request"),
    "headers_too_large": ("Invalid", "The request headers are too large"),
    "bad_payload.not_empty": ("Invalid", "This endpoint takes no parameters. Send an empty body or {{}}"),
    "bad_payload.inference": (
        "Invalid",
        "The body must be {{dataset, version?}}, {{rows}} or {{sql, parameters?}}, each with an optional name, or a file with rows",
    ),
    "bad_payload.preview": ("Invalid", "The body must be {{sql, parameters?}}"),
    "bad_payload.rows": (
        "Invalid",
        "The body must be {{rows: […], strict?}}. With strict: true, undeclared fields are errors",
    ),
    "bad_payload.parameter_values": (
        "Invalid",
        "parameters must be an object whose values are strings, numbers, booleans or null",
    ),
    "bad_version.not_an_integer": ("Invalid", "version must be a whole number"),
    "body_timed_out": ("Invalid", "The request body did not arrive within {seconds} seconds"),
    "body_too_large": ("Invalid", "The request body exceeds the limit of {limit:,} bytes"),
    "cannot_listen.http": ("Unavailable", "Cannot listen on {host} port {port}: {cause}"),
    "dataset_not_found.bad_name": ("NotFound", "Dataset {dataset!r} not found"),
    "duplicate_parameter.columns": ("Invalid", "Parameter {parameter} names a column twice"),
    "duplicate_parameter.query": ("Invalid", "Parameter {name!r} occurs twice"),
    "duplicate_parameter.versions": ("Invalid", "Parameter versions names dataset {dataset} twice"),
    "method_not_allowed": ("Invalid", "Method {method} is not allowed for {path}. Allowed: {allowed}"),
    "missing_token_key.rest": (
        "Invalid",
        "The REST server needs token keys or a development caller. Set PENSTOCK_JWT_SECRET or PENSTOCK_JWKS_URL, or use --dev",
    ),
    "missing_name.query": ("Invalid", "The name of the dataset is missing. Add it to the URL: ?name=schema.table"),
    "missing_name.body": ("Invalid", "The name of the dataset is missing. Send it as name: schema.table"),
    "paging_not_supported": (
        "Invalid",
        "{media_type} responses contain all rows. Omit $top and $skip, or request application/json",
    ),
    "missing_schema.dataset": (
        "Invalid",
        'The columns are missing. Send "schema": [{{"name": "id", "type": "int64", "nullable": false}}, …]',
    ),
    "route_not_found": ("NotFound", "No resource at {path}. See /docs for the API"),
    "cross_site": (
        "Forbidden",
        "Requests without a token are not accepted from pages of other sites. Send a token, or use another client than a browser",
    ),
    "not_acceptable": ("Invalid", "Cannot produce the requested media type. Available: {offered}"),
    "not_in_format.no_fields": (
        "Invalid",
        "The result has none of the selected fields. Rows without fields cannot be written as Parquet",
    ),
    "not_loopback": ("Forbidden", "Requests without a token must be sent to {hosts}"),
    "not_ready": ("Unavailable", "The service is not ready. Failed checks: {failed}"),
    "not_text.member": ("Invalid", "{member} must be a string"),
    "request_timed_out": (
        "Unavailable",
        "No response within {seconds} seconds. The request may still be executed: check its outcome before you repeat it. A write with an idempotency-key can be repeated safely",
    ),
    "server_stopping.request": (
        "Unavailable",
        "The server is shutting down. The request may or may not have been executed: check its outcome before you repeat it",
    ),
    "unknown_member.dataset": ("Invalid", "Unknown member {member!r}. Valid members: {valid}"),
    "unknown_parameter.query": ("Invalid", "Unknown parameter {parameter!r}. Valid parameters: {valid}"),
    "unknown_parameter.none_allowed": ("Invalid", "Unknown parameter {parameter!r}. This endpoint takes no parameters"),
    "unknown_type.column": (
        "Invalid",
        "Unknown type {type!r}. Examples of types: int64, string, decimal(12,2), list<int64>",
    ),
    "unsupported_media_type.encoded": (
        "Invalid",
        "Content-Encoding {encoding!r} is not supported. Send the body unencoded",
    ),
    "unsupported_media_type.unknown": ("Invalid", "Content-Type {media_type!r} is not supported. Accepted: {accepted}"),
    "unsupported_media_type.missing": ("Invalid", "The Content-Type header is missing. Accepted: {accepted}"),
    "url_too_long": ("Invalid", "The URL exceeds the limit of {limit:,} bytes"),
    # flight
    "bad_address": ("Invalid", "Invalid Flight address {address!r}. Use grpc://host:port or grpc+tls://host:port"),
    "bad_certificate": ("Invalid", "Cannot use the TLS certificate and key: {cause}"),
    "bad_member.command": ("Invalid", "The member {member!r} in {source} must be {expected}"),
    "bad_message.flight_data": ("Invalid", "The message is not a valid FlightData message"),
    "bad_message.too_many_fields": ("Invalid", "The message has more than {limit} fields"),
    "bad_message.descriptor": ("Invalid", "The message does not contain a valid FlightDescriptor"),
    "bad_message.missing_header": ("Invalid", "A FlightData message has a body but no header"),
    "bad_message.protobuf": ("Invalid", "The request is not a valid {message_type} message"),
    "batch_too_large.decompressed": (
        "Invalid",
        "The batch at row {row:,} decompresses to more than {limit:,} bytes. Send smaller batches",
    ),
    "broken_batch": ("Invalid", "The batch at row {row:,} is not valid Arrow data: {cause}"),
    "broken_schema": ("Invalid", "Cannot decode the Arrow schema: {cause}"),
    "cannot_listen.flight": ("Unavailable", "Cannot listen for Flight on {host} port {port}. The port may be in use"),
    "client_gone": ("Unavailable", "The client ended the call before the commit; nothing was written"),
    "command_too_large": ("Invalid", "Too many bytes in {source}. The limit is {limit:,}, not counting row ids"),
    "command_too_large.values": (
        "Invalid",
        "Too many JSON values in {source}. The limit is {limit:,}, not counting row ids",
    ),
    "dataset_exists.table": ("AlreadyExists", "table {dataset!r} already exists"),
    "dataset_not_found.invalid_name": ("NotFound", "No dataset can have this name"),
    "dataset_not_found.table": ("NotFound", "table {dataset!r} not found"),
    "dictionary_sent": ("Invalid", "Dictionary batches are not supported. Send the values without dictionary encoding"),
    "duplicate_header": ("Invalid", "More than one {name} header. Send exactly one"),
    "header_too_large": ("Invalid", "The header of a message exceeds the limit of {limit:,} bytes"),
    "late_descriptor": ("Invalid", "Only the first message of a stream may have a descriptor"),
    "missing_member.command": ("Invalid", "Missing member {member!r} in {source}"),
    "missing_response": ("Unavailable", "The server ended the call without a response"),
    "missing_command": ("Invalid", 'The descriptor must be a command, for example {{"operation": "insert", …}}'),
    "missing_descriptor": ("Invalid", "The first message of a DoPut stream must have a descriptor"),
    "not_an_object": ("Invalid", "Expected a JSON object in {source}"),
    "unexpected_message": (
        "Invalid",
        "Expected a record batch, got a message of type {message_type!r}. A stream has exactly one schema",
    ),
    "bad_rows.not_dicts": ("Invalid", "Every row of a list must be a dict, for example [{{'id': 1}}]"),
    "bad_rows.conversion": ("Invalid", "Cannot convert the values to the column types of the table: {cause}"),
    "missing_schema.stream": (
        "Invalid",
        "The first message with data must be a schema, not a message of type {message_type!r}",
    ),
    "namespace_not_found": ("NotFound", "schema {schema!r} not found"),
    "missing_table": ("Invalid", "The descriptor must name a table: a path of schema and table name, or a command"),
    "missing_token_key.flight": (
        "Invalid",
        "The Flight server needs token keys or a development caller. Set PENSTOCK_JWT_SECRET or PENSTOCK_JWKS_URL, or use --dev",
    ),
    "not_in_transaction": (
        "Unsupported",
        "{action} cannot be part of a transaction. Send it without the {header} header",
    ),
    "not_implemented.do_put": ("Unsupported", "This server does not accept DoPut"),
    "not_implemented.do_exchange": (
        "Unsupported",
        "DoExchange is not implemented. Use DoPut to write and DoGet to read",
    ),
    "not_implemented.poll_flight_info": (
        "Unsupported",
        "PollFlightInfo is not implemented. Use GetFlightInfo, which responds immediately",
    ),
    "read_only.table": ("Unsupported", "table {table!r} does not support {operation} operations"),
    "row_count_mismatch.expected_rows": (
        "Invalid",
        "expected_rows ({expected_rows}) does not match input rows ({rows})",
    ),
    "row_too_large.message": ("Invalid", "A row exceeds the message limit of {limit:,} bytes"),
    "server_stopping": ("Unavailable", "The server is shutting down and accepts no new calls. Retry later"),
    "stream_idle": ("Unavailable", "No message arrived for {seconds} seconds; nothing was written"),
    "too_many_calls": ("Unavailable", "The limit of {limit:,} concurrent calls is reached. Retry later"),
    "too_many_row_ids": ("Invalid", "Too many row_ids: {count:,}. The limit is {limit:,} per call"),
    "transaction_not_found.id": ("NotFound", "Transaction {id!a} not found"),
    "unknown_action": ("Unsupported", "Unknown action {action!a}. Valid actions: {valid}"),
    "unknown_criteria": (
        "Invalid",
        "ListFlights takes no criteria. Use the action list_tables to list the tables of one schema",
    ),
    "unknown_member.command": ("Invalid", "Unknown member {unknown!r} in {source}. Valid members: {valid}"),
    "unknown_operation.put": (
        "Invalid",
        "Unknown operation {operation!r}. Valid operations: insert, update. Use the action delete to delete rows",
    ),
    "version_not_found.transaction": (
        "NotFound",
        "Version {version} does not exist in this transaction's snapshot (newest: {newest})",
    ),
    # ui
    "empty_sample.proposal": ("Invalid", "The sample is empty. Enter rows, the name of a dataset, or SQL"),
    # cli
    "process_not_started": ("Unavailable", "Server process {index} did not start. Its error is above"),
    "dev_requires_loopback": (
        "Invalid",
        "--dev requires no tokens, so it can listen on a loopback address only, not on {host!r}",
    ),
    "input_too_large": ("Invalid", "{file} exceeds the limit of {limit:,} bytes"),
    "missing_jwt_secret": (
        "Invalid",
        "PENSTOCK_JWT_SECRET is not set. Set it to the secret of the service (32 bytes or more)",
    ),
    "missing_token_key.serve": (
        "Invalid",
        "No key to verify tokens. Set PENSTOCK_JWT_SECRET (32 bytes or more) or PENSTOCK_JWKS_URL, or use --dev",
    ),
    "unreadable_input": ("Invalid", "Cannot read {file}: {strerror}"),
    "unwritable_rows": (
        "Invalid",
        "Cannot write the rows as {format}: {cause}. Cast the column to VARCHAR in the SELECT",
    ),
    "workspace_of_other_tenant": ("AlreadyExists", "{folder} is already a workspace of tenant {tenant}"),
    # top level
    "request_cancelled": ("Unsupported", "The request was cancelled"),
    "bad_setting": ("Invalid", "Cannot parse the setting {setting}={value}. Meaning: {meaning}"),
    "bad_jar_lock": (
        "Invalid",
        "{file}: invalid line {line!r}. It must have the form group:artifact:version[:classifier] sha256:<hex>",
    ),
    "broken_workspace": ("Invalid", "Cannot read the workspace file {file}: {cause}"),
    "jars_not_fetched": (
        "Unavailable",
        "Cannot fetch the jars into {folder}: {cause}. Check that Maven can reach a repository (settings.xml)",
    ),
    "missing_maven": (
        "Unavailable",
        "The program mvn was not found. Install Maven, for example with: apt-get install maven",
    ),
    "newer_workspace": (
        "Unsupported",
        "Workspace {folder} was created by a newer version of Penstock (format {format}). Upgrade Penstock",
    ),
    "wrong_jar_checksum": (
        "Invalid",
        "{file} has the SHA-256 checksum {sha256}, not {expected}. Check the Maven repository: the file was discarded",
    ),
    "workspace_not_created": ("Invalid", "Cannot create a workspace in {folder}: {strerror}"),
    "workspace_not_found": (
        "NotFound",
        "{folder} is not a workspace. Create one with `penstock init {folder}`, or set PENSTOCK_WORKSPACE",
    ),
}


def message(key: str, values: Mapping[str, Any]) -> str:
    """Return the message of a reason with its values filled in."""
    return _FORMATTER.vformat(REASONS[key][1], (), values)


class _MessageFormatter(string.Formatter):
    """Formats lists as comma-separated text, and counts with their noun."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, list | tuple | set | frozenset) and not format_spec:
            return ", ".join(map(str, value))
        if format_spec.isalpha() and format_spec not in "bcdeEfFgGnosxX%":
            plural = format_spec if value == 1 else f"{format_spec}s"
            return f"{value:,} {plural}"
        return str(format(value, format_spec))


_FORMATTER = _MessageFormatter()
