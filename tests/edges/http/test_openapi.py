import pytest, schemathesis, hypothesis
from schemathesis import Config, GenerationMode
from edges.http.client import SECRET, Client, near, token, bearer
from edges.http.conftest import *
from penstock.core.caller import Role

@pytest.fixture
def document(app):
    config = Config.from_dict({"generation": {"deterministic": True, "max-examples": 10, "database":"none"}})
    s = schemathesis.openapi.from_asgi("/openapi.json", app, config=config)
    s.validate()
    return s

schema = schemathesis.pytest.from_fixture("document")
N=[0]
@schema.parametrize()
def test_all(case):
    N[0]+=1
    case.call_and_validate(headers=bearer(token()))
def test_count():
    print(N)
