"""Keeps objects as a folder of manifests has them, for as long as it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from kvquota_cli.embedded.folder import look_at
from kvquota_cli.embedded.objects import News, Objects
from kvquota_cli.manifests.last_good import LastGood

LOOK_SECONDS: Final = 0.5  # a change counts when two looks agree on it, so within a second


class FolderWatch:
    """`say` gets sentences for people."""

    def __init__(self, folder: Path, objects: Objects, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._objects = objects
        self._say = say
        self._files = LastGood()
        self._unreadable = ""

    def first_look(self) -> None:
        """Take everything that is there, and say what is wrong with it. Raises OSError."""
        self._files.see(look_at(self._folder))
        news = self._objects.take(self._files.in_force(), datetime.now(UTC))
        for finding in news.told:
            self._say(str(finding))

    async def run(self, changed: Callable[[], None]) -> None:
        """Look until cancelled; `changed` is called when an object differs."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if await self._look():
                changed()

    async def _look(self) -> bool:
        try:
            look = await asyncio.to_thread(look_at, self._folder)
        except OSError as error:
            self._cannot_look(f"cannot read {self._folder}: {error.strerror}")
            return False
        self._cannot_look("")
        force = self._files.see(look)
        if force is None:
            return False
        news = self._objects.take(force, datetime.now(UTC))
        self._tell(news)
        return news.changed

    def _tell(self, news: News) -> None:
        for finding in news.told:
            self._say(str(finding))
        if news.told:
            self._say("what is wrong is passed over: its last good version stays in force")
        if news.cleared:
            self._say("the manifests are all good again")
        if news.changed:
            self._say("the manifests changed: taking them over")

    def _cannot_look(self, trouble: str) -> None:
        if trouble and trouble != self._unreadable:
            self._say(f"{trouble}; all objects stay as they are")
        if self._unreadable and not trouble:
            self._say(f"{self._folder} can be read again")
        self._unreadable = trouble
