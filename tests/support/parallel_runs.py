"""Which tests share a worker when a run has several (`pytest -n`): those that share a costly part.

A part is started once per worker that needs it. vLLM takes most of a minute and a core, a node owns its namespaces, so
all tests of one of them go to one worker; so do those of the API server, which is quick to start and shared all the
same.
"""

import pytest

SHARED_PARTS = ("engine", "node", "apiserver")  # markers, the costliest first: it decides where a test needs two


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a test that needs a shared part the group of that part."""
    for part in SHARED_PARTS:
        if item.get_closest_marker(part):
            item.add_marker(pytest.mark.xdist_group(part))
            return
