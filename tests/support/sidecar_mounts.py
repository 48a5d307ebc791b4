"""Folders that a sidecar is given files in, as a kubelet writes them."""

from collections.abc import Mapping
from pathlib import Path


class Volume:
    """A ConfigMap or a Secret that is mounted: names lead through `..data`, which is swapped as a whole, to the folder
    of one moment."""

    def __init__(self, folder: Path, files: Mapping[str, bytes] | None = None) -> None:
        self.folder = folder
        self._version = 0
        folder.mkdir()
        if files is not None:
            self.write(files)

    def write(self, files: Mapping[str, bytes]) -> None:
        """Put these in the place of all that was there."""
        self._version += 1
        payload = self.folder / f"..version-{self._version}"
        payload.mkdir()
        for name, content in files.items():
            (payload / name).write_bytes(content)
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(Path("..data") / name)
        before = (self.folder / "..data").resolve() if (self.folder / "..data").exists() else None
        (self.folder / "..data_tmp").symlink_to(payload.name)
        (self.folder / "..data_tmp").rename(self.folder / "..data")
        if before is not None:
            for each in before.iterdir():
                each.unlink()
            before.rmdir()

    def remove(self) -> None:
        """As when the object is deleted: an empty payload, and no names."""
        self.write({})
        for each in self.folder.iterdir():
            if not each.name.startswith(".."):
                each.unlink()
