"""docs/how-to/Dockerfile, built as it stands, and what its images run."""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from node_path import ROOT, compiled_wheel
from testcluster.building import WHEELS, Builder, wheels_of

pytestmark = [pytest.mark.node, pytest.mark.heavy]

DOCKERFILE = ROOT / "docs" / "how-to" / "Dockerfile"
ROOM_BYTES = 6 * 2**30
"""Of memory: twice what the images of both programs and their steps took."""
LOCKS = [ROOT / "requirements" / f"{name}.lock" for name in ("native", "operator", "sidecar")]


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    """In memory where there is a place for it: what is built is written once and read once."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > ROOM_BYTES
    folder = Path(tempfile.mkdtemp(prefix="kvquota-builder-", dir=memory)) if roomy else None
    with Builder(folder or tmp_path_factory.mktemp("builder")) as found:
        found.make_bases(*re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(), re.MULTILINE))
        yield found


@pytest.fixture(scope="module")
def mounts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels, and a copy of what is compiled already, so that it is not compiled once more."""
    compiled_wheel(tmp_path_factory.mktemp("wheel"))
    native = tmp_path_factory.mktemp("build") / "native"
    shutil.copytree(ROOT / "build" / "native", native)
    return {WHEELS: wheels_of(LOCKS), "/src/build/native": native}


@pytest.mark.parametrize(
    ("program", "said"),
    [("sidecar", f"kvquota-sidecar {metadata.version('kvquota')} (compiled)"), ("operator", "--webhook-listen")],
)
def test_the_image_of(builder: Builder, mounts: dict[str, Path], program: str, said: str) -> None:
    image = f"localhost/kvquota/{program}"
    builder.build(DOCKERFILE, ROOT, image, {"PROGRAM": program}, mounts)
    config = json.loads(builder("inspect", "--type", "image", image))["OCIv1"]["config"]
    assert config["User"] == "65532:65532"
    assert said in builder.output(image, {"sidecar": "--version", "operator": "--help"}[program])
