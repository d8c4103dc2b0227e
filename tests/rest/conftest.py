"""Fixtures of the REST tests: a workspace, its application, and clients with and without tokens."""

from collections.abc import Iterator

import pytest
from fastapi import FastAPI

from penstock.lake import Lake
from penstock.rest.app import create_app
from penstock.rest.context import RestContext
from penstock.service.auth.tokens import TokenVerifier
from penstock.service.queries.execution import QueryExecutor
from penstock.service.queries.sandbox import Sandbox
from rest.rest_client import SECRET, RestClient, in_process_client, token
from support import compiled_routes
from support.workspaces import WorkspaceFixture

compiled_routes.share()


@pytest.fixture
def local_lake(sqlite_workspace: WorkspaceFixture) -> Iterator[Lake]:
    """Open the workspace as its local caller: another tenant than that of the tokens."""
    with sqlite_workspace.open() as opened:
        yield opened


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Start one sandbox for all tests: the start takes a second, and queries leave no state."""
    sandbox = Sandbox(str(tmp_path_factory.getbasetemp()))
    yield sandbox
    sandbox.close()


@pytest.fixture
def rest_context(local_lake: Lake, sandbox: Sandbox) -> Iterator[RestContext]:
    rest_context = RestContext.create(
        local_lake._workspace, TokenVerifier(SECRET), query_executor=QueryExecutor(local_lake._workspace, sandbox)
    )
    yield rest_context
    rest_context.run_worker.close()


@pytest.fixture
def app(rest_context: RestContext) -> FastAPI:
    return create_app(rest_context)


@pytest.fixture
def client(app: FastAPI) -> RestClient:
    return in_process_client(app, token())
