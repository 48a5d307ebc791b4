"""What tests on the node share: the images of the product, and one installation for all tests of injected pods."""

from collections.abc import Iterator

import pytest

from injected_pods import Installed, installation
from node_path import load_images
from testcluster.helm import Helm
from testcluster.node import Node


@pytest.fixture(scope="session")
def product(node: Node, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The node has the images of the tree."""
    load_images(node, tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def installed(node: Node, helm: Helm, product: None) -> Iterator[Installed]:
    """The product on the node, and two pods of a Deployment under quota."""
    with installation(node, helm) as found:
        yield found
