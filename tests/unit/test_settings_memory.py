"""How much memory the process may use, out of the kernel's files."""

from pathlib import Path

import pytest

from kvquota_sidecar.memory import memory_limit

UNLIMITED_V1 = "9223372036854771712"
CASES: dict[str, tuple[str, dict[str, str], int | None]] = {
    "no files at all": ("", {}, None),
    "v2, its own folder is the root, as in a container": ("0::/\n", {"memory.max": "268435456\n"}, 268435456),
    "v2, without a limit": ("0::/a\n", {"a/memory.max": "max\n"}, None),
    "v2, a limit further up is one too": (
        "0::/a/b/c\n",
        {"a/memory.max": "300\n", "a/b/memory.max": "200\n", "a/b/c/memory.max": "max\n"},
        200,
    ),
    "v1, beside other controllers": (
        "5:cpu,cpuacct:/x\n4:memory:/a\n1:name=systemd:/y\n",
        {"memory/a/memory.limit_in_bytes": "100\n", "memory/memory.limit_in_bytes": UNLIMITED_V1, "x/memory.max": "1"},
        100,
    ),
    "v1, in a container that does not see its own path": (
        "4:memory:/kubepods/pod1\n0::/\n",
        {"memory/memory.limit_in_bytes": "134217728\n"},
        134217728,
    ),
    "v1, without a limit": ("4:memory:/\n", {"memory/memory.limit_in_bytes": UNLIMITED_V1}, None),
    "what is no number": ("0::/\n", {"memory.max": "much\n"}, None),
}


@pytest.mark.parametrize(("groups", "files", "expected"), CASES.values(), ids=CASES)
def test_the_smallest_limit_on_the_way_up_holds(
    tmp_path: Path, groups: str, files: dict[str, str], expected: int | None
) -> None:
    listing, root = tmp_path / "cgroup", tmp_path / "fs"
    if groups:
        listing.write_text(groups)
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    assert memory_limit(listing, root) == expected
