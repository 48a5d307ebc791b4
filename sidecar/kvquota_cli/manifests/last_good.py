"""What holds while somebody edits the files.

Decides, from what a folder holds at each look, which documents are in force. Pure.

Invariants:

1. A file that cannot be read keeps its last good documents; the other files take effect.
2. A file that is new or changed counts only when two looks in a row saw the same text: a file that is being written is
   half a file. At the first look everything counts.
3. A file that is gone takes its documents with it, but not before two looks in a row.
4. A folder that cannot be looked at changes nothing.

It does not know what objects mean, so an object that is wrong in itself is for the next step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvquota_cli.manifests.documents import Document, ManifestError, read_documents
from kvquota_cli.manifests.places import Finding

Look = Mapping[str, "str | Finding"]
"""What a folder holds: by file name its text, or why it cannot be read."""


@dataclass(frozen=True, slots=True)
class InForce:
    """Documents that hold, and what is wrong with the files as they are now."""

    documents: tuple[Document, ...] = ()
    findings: tuple[Finding, ...] = ()


class LastGood:
    """Feed it one look after the other."""

    def __init__(self) -> None:
        self._before: Look | None = None
        self._settled: dict[str, str | Finding] = {}
        self._good: dict[str, tuple[Document, ...]] = {}
        self._wrong: dict[str, Finding] = {}

    def see(self, look: Look) -> InForce | None:
        """What is in force now, None when nothing changed by this look."""
        before, self._before = self._before, look
        settled = {name for name in (*look, *self._settled) if before is None or before.get(name) == look.get(name)}
        changed = [name for name in sorted(settled) if self._settled.get(name) != look.get(name)]
        for name in changed:
            self._take(name, look.get(name))
        if before is not None and not changed:
            return None
        return self.in_force()

    def in_force(self) -> InForce:
        """What was in force after the last look."""
        documents = [document for name in sorted(self._good) for document in self._good[name]]
        return InForce(tuple(documents), tuple(self._wrong[name] for name in sorted(self._wrong)))

    def _take(self, name: str, text: str | Finding | None) -> None:
        self._wrong.pop(name, None)
        if text is None:
            self._settled.pop(name)
            self._good.pop(name, None)
            return
        self._settled[name] = text
        if isinstance(text, Finding):
            self._wrong[name] = text
            return
        try:
            self._good[name] = read_documents(text, name)
        except ManifestError as error:
            self._wrong[name] = error.finding
