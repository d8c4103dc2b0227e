"""Attacks on the sandbox with their expected errors. `{folder}` is a folder of the service with a secret."""

from dataclasses import dataclass

UNKNOWN = "dataset_not_found"
BAD, SEVERAL, FAILED = "bad_sql", "not_one_select", "query_failed"
LATE, MEMORY, LARGE = "query_timed_out", "query_out_of_memory", "query_too_large"


@dataclass(frozen=True)
class SandboxAttack:
    name: str
    sql: str
    ends: tuple[str, ...]  # reasons of valid errors


def attack(name: str, sql: str, *reasons: str) -> SandboxAttack:
    return SandboxAttack(name, sql, reasons)


_READERS = (
    "read_csv", "read_csv_auto", "read_parquet", "parquet_scan", "read_json", "read_json_auto", "read_json_objects",
    "read_json_objects_auto", "read_ndjson", "read_ndjson_auto", "read_ndjson_objects", "read_text", "read_blob",
    "read_duckdb", "read_single_csv_file", "read_single_json_file", "read_single_parquet_file", "glob", "sniff_csv",
    "parquet_metadata", "parquet_full_metadata", "parquet_schema", "parquet_kv_metadata", "parquet_file_metadata",
    "sqlite_scan", "st_read", "iceberg_scan", "delta_scan", "read_xlsx",
)  # fmt: skip

FILES = [
    *(attack(f"a file through {name}", f"SELECT * FROM {name}('{{folder}}/secret.csv')", BAD) for name in _READERS),
    attack("a reader in capitals", "SELECT * FROM READ_CSV('{folder}/secret.csv')", BAD),
    attack("a reader in quotes", "SELECT * FROM \"read_csv\"('{folder}/secret.csv')", BAD),
    attack("a reader by its schema", "SELECT * FROM main.read_csv('{folder}/secret.csv')", BAD),
    attack("a reader by its catalog", "SELECT * FROM system.main.read_csv('{folder}/secret.csv')", BAD),
    attack("a reader in a subquery", "SELECT (SELECT count(*) FROM read_text('{folder}/secret.csv'))", BAD),
    attack("a reader in WITH", "WITH a AS (SELECT * FROM read_text('{folder}/secret.csv')) FROM a", BAD),
    attack("a reader in EXISTS", "SELECT 1 WHERE EXISTS (FROM read_blob('{folder}/secret.csv'))", BAD),
    attack("a reader in a join", "FROM finance.tx t JOIN read_csv('{folder}/secret.csv') s ON true", BAD),
    attack("a reader in LATERAL", "FROM finance.tx t, LATERAL (FROM read_text('{folder}/secret.csv')) s", BAD),
    attack("a reader in a pivot", "FROM read_csv('{folder}/secret.csv') PIVOT (count(*) FOR a IN (1))", BAD),
    attack("a reader in ORDER BY", "SELECT 1 ORDER BY (SELECT max(content) FROM read_text('{folder}/secret.csv'))", BAD),
    attack("a reader in LIMIT", "SELECT 1 LIMIT (SELECT count(*) FROM read_text('{folder}/secret.csv'))", BAD),
    attack("a reader in a lambda", "SELECT list_transform([1], x -> (SELECT max(content) FROM read_text('/etc/passwd')))", BAD),
    attack("a reader as a value", "SELECT read_text('{folder}/secret.csv')", FAILED),
    attack("a reader as a method", "SELECT '{folder}/secret.csv'.read_text()", FAILED),
    attack("a file as a table", "SELECT * FROM '/etc/passwd'", UNKNOWN),
    attack("a Parquet file as a table", "SELECT * FROM '{folder}/secret.parquet'", UNKNOWN),
    attack("a quoted file as a table", 'SELECT * FROM "{folder}/secret.csv"', UNKNOWN),
    attack("a relative file", "FROM 'secret.parquet'", UNKNOWN),
    attack("a file above", "FROM '../../../../etc/passwd'", UNKNOWN),
    attack("a file above through a reader", "FROM read_text('{folder}/x/../secret.csv')", BAD),
    attack("a symbolic link", "FROM read_text('{folder}/link.csv')", BAD),
    attack("a symbolic link as a table", "FROM '{folder}/link.csv'", UNKNOWN),
    attack("a file of the network", "FROM read_csv('https://example.com/x.csv')", BAD),
    attack("a file of a bucket", "FROM 's3://bucket/x.parquet'", UNKNOWN),
    attack("a file with a wildcard", "FROM '{folder}/*.csv'", UNKNOWN),
    attack("the process's own files", "FROM read_text('/proc/self/environ')", BAD),
    attack("a file in two parts", 'FROM "{folder}"."secret.csv"', UNKNOWN),
    *(
        attack(f"the {file} of a dataset through {name}", f"SELECT * FROM {name}('{{folder}}/{file}.parquet')", BAD)
        for file in ("tx", "marked")
        for name in ("read_parquet", "parquet_scan", "parquet_metadata", "read_blob")
    ),
    attack("a data file with its positions", "FROM read_parquet('{folder}/marked.parquet', file_row_number=true)", BAD),
    attack("a data file as a table", "FROM '{folder}/marked.parquet'", UNKNOWN),
    attack("a data file in two parts", 'FROM "{folder}"."marked.parquet"', UNKNOWN),
    attack("a table of PostgreSQL", "FROM postgres_scan('host=localhost', 'public', 'x')", BAD),
]  # fmt: skip

STATEMENTS = [
    attack("ATTACH", "ATTACH '{folder}/x.db'", SEVERAL),
    attack("ATTACH to read", "ATTACH '{folder}/secret.db' AS s (READ_ONLY)", SEVERAL),
    attack("DETACH", "DETACH memory", SEVERAL),
    attack("USE", "USE system", SEVERAL),
    attack("COPY to a file", "COPY (SELECT 1) TO '{folder}/out.csv'", SEVERAL),
    attack("COPY over a file", "COPY (SELECT 1) TO '{folder}/secret.csv'", SEVERAL),
    attack("COPY over a data file", "COPY (SELECT 1) TO '{folder}/tx.parquet'", SEVERAL),
    attack(
        "COPY over a data file with a vector", "COPY (SELECT 1) TO '{folder}/marked.parquet' (FORMAT parquet)", SEVERAL
    ),
    attack(
        "COPY over a data file behind a query", "FROM finance.tx; COPY (SELECT 1) TO '{folder}/marked.parquet'", SEVERAL
    ),
    attack("COPY from a data file", "COPY finance.tx FROM '{folder}/marked.parquet'", SEVERAL),
    attack("COPY from a file", "COPY x FROM '{folder}/secret.csv'", SEVERAL),
    attack("EXPORT DATABASE", "EXPORT DATABASE '{folder}/out'", SEVERAL),
    attack("IMPORT DATABASE", "IMPORT DATABASE '{folder}'", SEVERAL),
    attack("INSTALL", "INSTALL httpfs", SEVERAL),
    attack("LOAD", "LOAD httpfs", SEVERAL),
    attack("LOAD of a file", "LOAD '{folder}/x.duckdb_extension'", SEVERAL),
    attack("PRAGMA", "PRAGMA database_list", SEVERAL, BAD),
    attack("PRAGMA that sets", "PRAGMA threads = 64", SEVERAL),
    attack("SET", "SET memory_limit = '100GB'", SEVERAL),
    attack("SET access", "SET enable_external_access = true", SEVERAL),
    attack("RESET", "RESET memory_limit", SEVERAL),
    attack("SET VARIABLE", "SET VARIABLE x = 1", SEVERAL),
    attack("CREATE TABLE", "CREATE TABLE x AS SELECT 1", SEVERAL),
    attack("CREATE a secret", "CREATE SECRET s (TYPE s3)", SEVERAL),
    attack("CREATE a macro", "CREATE MACRO f() AS TABLE FROM read_text('/etc/passwd')", SEVERAL),
    attack("INSERT", "INSERT INTO finance.tx VALUES (1)", SEVERAL),
    attack("UPDATE", "UPDATE finance.tx SET id = 1", SEVERAL),
    attack("DELETE", "DELETE FROM finance.tx", SEVERAL),
    attack("DROP", "DROP VIEW finance.tx", SEVERAL),
    attack("ALTER", "ALTER VIEW finance.tx RENAME TO x", SEVERAL),
    attack("CALL", "CALL pragma_version()", SEVERAL),
    attack("EXPLAIN", "EXPLAIN SELECT 1", SEVERAL),
    attack("EXPLAIN ANALYZE", "EXPLAIN ANALYZE SELECT 1", SEVERAL),
    attack("PREPARE", "PREPARE p AS SELECT 1", SEVERAL),
    attack("EXECUTE", "EXECUTE p", SEVERAL),
    attack("CHECKPOINT", "CHECKPOINT", SEVERAL),
    attack("VACUUM", "VACUUM", SEVERAL),
    attack("BEGIN", "BEGIN TRANSACTION", SEVERAL),
    attack("SHOW", "SHOW TABLES", SEVERAL),
    attack("DESCRIBE", "DESCRIBE finance.tx", SEVERAL),
    attack("SUMMARIZE", "SUMMARIZE SELECT 1", SEVERAL),
    attack("DESCRIBE inside", "SELECT * FROM (DESCRIBE finance.tx)", SEVERAL),
    attack("INSERT inside", "WITH x AS (INSERT INTO finance.tx VALUES (1) RETURNING *) FROM x", SEVERAL),
    attack("two statements", "SELECT 1; SELECT 2", SEVERAL),
    attack("a second that writes", "SELECT 1; COPY (SELECT 1) TO '{folder}/out.csv'", SEVERAL),
    attack("no statement", "", SEVERAL),
    attack("only a comment", "-- nothing", SEVERAL),
    attack("only semicolons", ";;;", SEVERAL),
    attack("a NUL", "SELECT 1 \0 FROM finance.tx", BAD),
    attack("half a character", "SELECT '\ud800'", BAD),
    attack("no SQL", "hello", BAD),
]

REACH = [
    attack("an address in memory", "FROM arrow_scan(1, 2, 3)", BAD),
    attack("an address of Python's", "FROM python_arrow_scan(1, 2)", BAD),
    attack("an address of pandas", "FROM pandas_scan(94000000000000)", BAD),
    attack("a function by its address", "FROM python_map_function(1, 2, 3)", BAD),
    attack("SQL in a text", "FROM query('SELECT 1')", BAD),
    attack("a table in a text", "FROM query_table('finance.tx')", BAD),
    attack("SQL in JSON", "FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))", BAD),
    attack("a plan of SQL in a text", "SELECT json_serialize_plan('FROM duckdb_settings()')", BAD),
    attack("a plan by its schema", "SELECT system.main.JSON_SERIALIZE_PLAN('SELECT 1')", BAD),
    attack("a plan as a method", "SELECT 'SELECT 1'.json_serialize_plan()", BAD),
    attack("SQL into JSON", "SELECT json_serialize_sql(word) FROM finance.tx", BAD),
    attack(
        "SQL out of JSON",
        "SELECT json_deserialize_sql(json_object('error', true, 'error_message', word)) FROM finance.tx",
        BAD,
    ),
    attack("SQL in JSON as a value", "SELECT json_execute_serialized_sql('{}')", BAD),
    attack("a pragma as a table", "FROM pragma_version()", BAD),
    attack("the settings", "FROM duckdb_settings()", BAD),
    attack("the secrets", "FROM duckdb_secrets()", BAD),
    attack("the settings as a table", "FROM duckdb_settings", UNKNOWN),
    attack("the catalog of SQLite", "FROM sqlite_master", UNKNOWN),
    attack("the information schema", "FROM information_schema.tables", UNKNOWN),
    attack("the catalog of PostgreSQL", "FROM pg_catalog.pg_class", UNKNOWN),
    attack("the catalog in three parts", "FROM system.information_schema.tables", UNKNOWN),
    attack("another's dataset", "FROM other.payroll", UNKNOWN),
    attack("another's dataset in a subquery", "SELECT (SELECT max(pay) FROM other.payroll)", UNKNOWN),
    attack("another's dataset behind a name of WITH", "WITH payroll AS (FROM other.payroll) FROM payroll", UNKNOWN),
    attack("a dataset in three parts", "FROM memory.finance.tx", UNKNOWN),
    attack("a dataset without its schema", "FROM tx", UNKNOWN),
    attack("a name of WITH outside its scope", "SELECT * FROM (WITH a AS (SELECT 1) FROM a), a", UNKNOWN),
    attack("a name of WITH before it is there", "WITH a AS (FROM b), b AS (SELECT 1) FROM a", UNKNOWN),
    attack("a name of WITH inside itself", "WITH tx AS (FROM tx) FROM tx", UNKNOWN),
    attack("the place of a pinned version", 'FROM "finance@1".tx', UNKNOWN),
    attack("a Python variable", "FROM rel", UNKNOWN),
    attack("hidden row ids", "SELECT _rowid FROM finance.tx", FAILED),
    *(
        attack(f"the hidden column {name}", f"SELECT {name} FROM finance.tx", FAILED)
        for name in ("rowid", "filename", "file_row_number", "file_index", "__fragment_index", "__batch_index")
    ),
    *(
        attack(f"the source {name} of a view", f"FROM {name}", UNKNOWN)
        for index in (0, 1)
        for name in (
            f'"finance.tx@{index}"',
            f'main."finance.tx@{index}"',
            f'temp."finance.tx@{index}"',
            f'temp.main."finance.tx@{index}"',
            f'finance."tx@{index}"',
            f'"finance.tx"."{index}"',
        )
    ),
    attack("the definition of a view", "SELECT sql FROM duckdb_views()", BAD),
    attack("an environment variable", "SELECT getenv('HOME')", FAILED),
    attack("the inside of an aggregate", "SELECT finalize(x) FROM finance.tx", BAD),
    attack("DuckDB's log", "SELECT write_log('x')", BAD),
    attack("a version that is computed", "FROM finance.tx AT (VERSION => 1 + 1)", BAD),
    attack("a version that is a text", "FROM finance.tx AT (VERSION => '1')", BAD),
    attack("a version that is a parameter", "FROM finance.tx AT (VERSION => $n)", BAD),
    attack("a version by time", "FROM finance.tx AT (TIMESTAMP => now())", BAD),
    attack("a parameter without a name", "SELECT $1", BAD),
    attack("a question mark", "SELECT ?", BAD),
    attack("a parameter that is not given", "SELECT $secret", "missing_parameter"),
    attack("out of the parentheses", "SELECT 1) AS q; COPY (SELECT 1) TO '{folder}/out.csv'; --", BAD),
    attack("out of the parentheses by a union", "SELECT 1) UNION ALL (SELECT 2", BAD),
    attack("a closed parenthesis", "SELECT 1)", BAD),
    attack("an open parenthesis", "SELECT (1", BAD),
    attack("an open comment", "SELECT 1 /*", BAD),
    attack("an open text", "SELECT 'x", BAD),
    attack("a letter that looks like another", "SELECT * FROM finance.tх", UNKNOWN),
]

BOMBS = [
    attack("10,000 parentheses", "SELECT " + "(" * 10_000 + "1" + ")" * 10_000, BAD),
    attack("2,000 levels of functions", "SELECT " + "abs(" * 2_000 + "1" + ")" * 2_000, BAD),
    attack("400 subqueries", "SELECT " + "(SELECT " * 400 + "1" + ")" * 400, BAD, FAILED, MEMORY, LATE),
    attack("a long statement", "SELECT '" + "x" * 10_000_000 + "'", BAD),
    attack("many terms", "SELECT 1" + "+1" * 20_000, BAD),
    attack("a cross join", "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range % 7 = b.range % 11", LATE, MEMORY),
    attack("endless recursion", "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n % 7 FROM t) SELECT count(*) FROM t", LATE, MEMORY),
    attack("recursion that grows", "WITH RECURSIVE t(s) AS (SELECT 'x' UNION ALL SELECT s || s FROM t) SELECT max(length(s)) FROM t", MEMORY, FAILED, LATE),
    attack("recursion that doubles", "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t, range(2)) SELECT count(*) FROM t", MEMORY, LATE),
    attack("a long text", "SELECT length(repeat('x', 4000000000))", MEMORY, FAILED),
    attack("long texts", "SELECT list(repeat('x' || i, 1000000)) FROM range(100000) t(i)", MEMORY, LATE),
    attack("a long list", "SELECT len(list(i)) FROM range(10000000000) t(i)", MEMORY, LATE),
    attack("a long range", "SELECT len(range(10000000000))", MEMORY, FAILED, LATE),
    attack("a large group", "SELECT count(*) FROM (SELECT i, md5(i::VARCHAR) m FROM range(1000000000) t(i) GROUP BY ALL)", MEMORY, LATE),
    attack("a large sort", "SELECT i FROM range(2000000000) t(i) ORDER BY hash(i) LIMIT 1 OFFSET 1000000000", MEMORY, LATE),
    attack("a large join", "SELECT count(*) FROM range(1000000000) a JOIN range(1000000000) b USING (range)", MEMORY, LATE),
    attack("a large window", "SELECT max(r) FROM (SELECT row_number() OVER (ORDER BY hash(i)) r FROM range(1000000000) t(i))", MEMORY, LATE),
    attack("a large aggregate", "SELECT string_agg(i::VARCHAR, ',') FROM range(10000000000) t(i)", MEMORY, LATE, FAILED),
    attack("a regular expression", "SELECT count(*) FROM range(100000000) t(i) WHERE regexp_matches(repeat('a', 300) || i, '(a*)*(a|aa)+b$')", LATE, MEMORY),
    attack("a large number", "SELECT count(factorial(33)) FROM range(100000000000) t(i) WHERE i % 3 = 4", LATE),
    attack("many columns", "SELECT " + ", ".join(f"repeat('{n}', 1000000) AS c{n}" for n in range(500)), LARGE, MEMORY, LATE),
    attack("many rows", "SELECT * FROM range(100000000000)", LARGE),
    attack("long rows", "SELECT repeat('x', 100000) FROM range(1000000)", LARGE, MEMORY),
    attack("one long value", "SELECT repeat('x', 20000000)", LARGE),
    attack("rows of nothing", "SELECT NULL FROM range(100000000000)", LARGE),
]  # fmt: skip

ATTACKS = [*FILES, *STATEMENTS, *REACH, *BOMBS]
