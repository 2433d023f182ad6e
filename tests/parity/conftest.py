"""The process that the ranks of all parity groups are forked from."""

import pytest
from group import Server


@pytest.fixture(scope="session")
def server():
    with Server() as server:
        yield server
