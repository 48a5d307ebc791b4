"""The sidecar as a program: started with files, asked over HTTP, and read by its log and by /proc."""

import json
import os
import signal
import socket
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kvquota_api import pod_config
from kvquota_api.pod_config import PodConfig
from sidecar_rig import KEYS, SEARCH, TOKEN, chat, config, identity, post
from testcluster.processes import Keeper, Server, wait_until

DEADLINE_SECONDS = 30.0
AUTHORIZED = {"Authorization": f"Bearer {KEYS[SEARCH]}"}


@dataclass(frozen=True, slots=True)
class Program:
    """A sidecar that was started: the process is the supervisor."""

    server: Server

    @property
    def pid(self) -> int:
        return self.server.process.pid

    def lines(self) -> list[dict[str, Any]]:
        """What it has logged so far, in JSON."""
        text = self.server.log.read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["event"] == name]

    def event(self, name: str, number: int = 1) -> dict[str, Any]:
        """The log line of a kind that comes as the `number`th, once it is there."""
        until(f"{name} is logged", lambda: len(self.events(name)) >= number or not self.server.alive)
        return self.events(name)[number - 1]

    @property
    def url(self) -> str:
        return f"http://{self.event('serving')['traffic']}"

    @property
    def admin_url(self) -> str:
        return f"http://{self.event('serving')['admin']}"

    @property
    def metrics(self) -> list[str]:
        """What it tells an operator of itself."""
        return send(f"{self.admin_url}/metrics", Authorization=f"Bearer {TOKEN}")[1].decode().splitlines()

    def child(self) -> int:
        """The process that serves."""
        return children(self.pid)[0]

    def signal(self, number: int) -> None:
        self.server.process.send_signal(number)

    def ended(self) -> int:
        """Its exit code, once it has ended."""
        return self.server.process.wait(DEADLINE_SECONDS)


def until(what: str, happened: Any) -> None:
    """Wait until it happened; fail with `what`."""
    assert wait_until(happened, timeout_s=DEADLINE_SECONDS, poll_s=0.01), f"not in time: {what}"


def children(pid: int) -> list[int]:
    """The processes whose parent is `pid`, the oldest first."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def replaced(program: Program, number: int = signal.SIGKILL) -> int:
    """Send a signal to the child; the child after it, once it serves and the end of the first is in the log."""
    ended = len(program.events("child_ended"))
    os.kill(program.child(), number)
    program.event("child_ended", ended + 1)
    program.event("serving", ended + 2)
    return program.child()


def mounted(folder: Path, wanted: PodConfig | None = None) -> Path:
    """Config and identity as files of a folder."""
    (folder / "identity").mkdir()
    (folder / "config.json").write_bytes(pod_config.encode(wanted or config()))
    (folder / "identity" / "identity.json").write_bytes(pod_config.encode(identity()))
    (folder / "identity" / "token").write_text(TOKEN)
    return folder


def files_of(folder: Path) -> list[str]:
    """The flags that name them."""
    return ["--config", str(folder / "config.json"), "--identity", str(folder / "identity")]


def start(keeper: Keeper, folder: Path, *flags: str, before: tuple[str, ...] = (), **environ: str) -> Program:
    """Start it on free ports; `before`: a program that starts it."""
    ports = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    argv = [*before, sys.executable, "-m", "kvquota_sidecar", *ports, *flags]
    return Program(keeper.start("sidecar", argv, folder / "sidecar.log", environ={**os.environ, **environ}))


def engine(keeper: Keeper, folder: Path, *flags: str) -> str:
    """Start a fake engine; its URL."""
    argv = [sys.executable, "-m", "kvquota_fakeengine", "--port", "0", "--model", "tiny", *flags]
    server = keeper.start("engine", argv, folder / "engine.log")
    until("the engine serves", lambda: "serving" in server.log.read_text())
    return server.log.read_text().split()[-1]


def send(url: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    """Status and body of the answer to a request on a connection of its own."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def begun_stream(program: Program, tokens: int) -> socket.socket:
    """A client that has begun to get an answer of that many tokens."""
    where = urlsplit(program.url)
    client = socket.create_connection((where.hostname, where.port), DEADLINE_SECONDS)
    client.sendall(post(chat(stream=True, max_tokens=tokens, ignore_eos=True)))
    assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
    return client


def rest_of(client: socket.socket) -> bytes:
    """All that comes up to the end of the connection."""
    rest = b""
    while more := client.recv(65536):
        rest += more
    return rest
