"""The HTTP edge of a workspace, as an admin, a stranger and nobody meet it."""

from collections.abc import Iterator

import pytest
from fastapi import FastAPI

from edges.http.client import SECRET, Client, near, token
from penstock.rest.app import application
from penstock.rest.context import Edge
from penstock.lake import Lake
from penstock.service.queries.execution import Results
from penstock.service.queries.sandbox import Sandbox
from penstock.service.auth.tokens import Tokens
from workspaces import Place


@pytest.fixture
def local(embedded: Place) -> Iterator[Lake]:
    """The workspace as its own command line sees it: another tenant than that of the tokens."""
    with embedded.open() as opened:
        yield opened


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """One for all: it takes a second to start, and keeps nothing of a query."""
    sandbox = Sandbox(str(tmp_path_factory.getbasetemp()))
    yield sandbox
    sandbox.close()


@pytest.fixture
def edge(local: Lake, sandbox: Sandbox) -> Iterator[Edge]:
    edge = Edge(local.workspace, Tokens(SECRET), results=Results(local.workspace, sandbox))
    yield edge
    edge.runner.close()


@pytest.fixture
def app(edge: Edge) -> FastAPI:
    return application(edge)


@pytest.fixture
def client(app: FastAPI) -> Client:
    return near(app, token())
