"""Catalog reads have a time limit and end when their request is cancelled; writes are not interrupted."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import text

import penstock
from penstock import cancellation
from penstock.cancellation import CancelToken
from penstock.errors import Unavailable, Unsupported
from penstock.lake import Lake
from support.workspaces import WorkspaceFixture

# The statement runs until it is interrupted.
ENDLESS = text("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n")


def run_endless(lake: Lake) -> None:
    with lake._workspace.db.read(lake.caller) as tx:
        tx.all(ENDLESS)


def test_read_statement_over_its_limit_fails_and_the_connection_stays_usable(workspace: WorkspaceFixture) -> None:
    with penstock.open(settings=replace(workspace.settings(), catalog_seconds=1)) as lake:
        for _ in range(2):
            with pytest.raises(Unavailable) as error:
                run_endless(lake)
            assert error.value.reason == "statement_timed_out"
        lake.create("demo.after", {"id": [1]})
        assert [dataset.name for dataset in lake.datasets()] == ["demo.after"]


def test_read_statement_of_a_cancelled_request_is_interrupted(lake: Lake) -> None:
    token, started = CancelToken(), threading.Event()

    def run_in_thread() -> None:
        with cancellation.active(token):
            started.set()
            run_endless(lake)

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run_in_thread)
        assert started.wait(60)
        threading.Event().wait(0.1)  # usually within the statement; before or after it, the outcome is the same
        token.cancel()
        with pytest.raises(Unsupported) as error:
            future.result(60)
    assert error.value.reason == "request_cancelled"
    lake.create("demo.after", {"id": [1]})
    assert [dataset.name for dataset in lake.datasets()] == ["demo.after"]


def test_cancelled_request_starts_no_further_transaction(lake: Lake) -> None:
    token = CancelToken()
    token.cancel()
    with cancellation.active(token), pytest.raises(Unsupported):
        lake.create("demo.never", {"id": [1]})
    assert list(lake.datasets()) == []
