"""The processes of the benchmark: the sidecars, and the real operator."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import sysconfig
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from site_objects import NAMESPACE

from testcluster.processes import Keeper, Server, free_port, tail

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[2]
ANSWER_SECONDS: Final = 60.0


class Sidecars:
    """The process that plays all sidecars, on `port` of every address."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process = process
        self._turn = asyncio.Lock()
        self.port = port
        self.pid = process.pid

    async def order(self, order: str, **arguments: Any) -> Any:
        """Its answer to one order. Raises RuntimeError where it is gone."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        async with self._turn:
            stdin.write(json.dumps({"order": order, **arguments}).encode() + b"\n")
            line = await asyncio.wait_for(stdout.readline(), ANSWER_SECONDS)
        if not line:
            raise RuntimeError("the process of the sidecars has ended; its error is above")
        return json.loads(line)


@asynccontextmanager
async def sidecars(port: int | None) -> AsyncIterator[Sidecars]:
    """They end with their context. `port`: None takes a free one."""
    port = port or free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(HERE / "sidecars.py"),
        str(port),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**28,
    )
    try:
        yield Sidecars(process, port)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), ANSWER_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()


class Operator:
    """The operator as a process, with its own log. `python` runs it, with the packages of this environment."""

    def __init__(self, kubeconfig: Path, log: Path, python: str, options: tuple[str, ...]) -> None:
        self._keeper = Keeper()
        self._kubeconfig = kubeconfig
        self._log = log
        self._python = python
        self._options = options
        self._server: Server | None = None
        self._address = ""

    @property
    def pid(self) -> int:
        assert self._server is not None
        return self._server.process.pid

    def start(self) -> None:
        self._address = f"127.0.0.1:{free_port()}"
        where = [f"--namespace={NAMESPACE}", "--kubeconfig", str(self._kubeconfig), f"--listen={self._address}"]
        command = [self._python, "-m", "kvquota_operator", *where, *self._options]
        self._server = self._keeper.start("operator", command, self._log, environ={**os.environ, **self._packages()})

    def _packages(self) -> dict[str, str]:
        if self._python == sys.executable:
            return {}
        folders = (str(ROOT / "operator"), str(ROOT / "crds"), sysconfig.get_path("purelib"))
        return {"PYTHONPATH": os.pathsep.join(folders)}

    def stop(self) -> None:
        """End it as Kubernetes does, with SIGTERM."""
        self._keeper.stop()

    def check_alive(self) -> None:
        if self._server is not None and not self._server.alive:
            raise RuntimeError(f"the operator has ended by itself:\n{tail(self._log)}")

    async def metrics(self) -> Mapping[str, float]:
        """What it counts, by name and labels."""
        return await asyncio.to_thread(self._metrics)

    def _metrics(self) -> Mapping[str, float]:
        with urllib.request.urlopen(f"http://{self._address}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in samples}
