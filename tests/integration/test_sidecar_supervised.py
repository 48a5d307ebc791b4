"""The supervisor: its child may die as it likes, and nobody who asks is refused for it."""

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kvquota_sidecar import supervisor
from raw_client import RawClient
from sidecar_program import (
    AUTHORIZED,
    DEADLINE_SECONDS,
    Program,
    begun_stream,
    children,
    engine,
    files_of,
    mounted,
    replaced,
    rest_of,
    send,
    start,
    until,
)
from sidecar_rig import chat, need_namespaces, post
from testcluster.processes import Keeper, Server


def served(keeper: Keeper, folder: Path, *flags: str, before: tuple[str, ...] = ()) -> Program:
    """A sidecar in front of a fake engine, once it serves."""
    behind = engine(keeper, folder, "--decode-rate", "200")
    quick = ("--lame-duck-seconds", "0")
    program = start(keeper, mounted(folder), "--engine", behind, *files_of(folder), *quick, *flags, before=before)
    program.event("serving")
    return program


def watch(program: Program, seconds: float) -> None:
    """Let time pass; nobody ends meanwhile."""
    with suppress(subprocess.TimeoutExpired):
        assert program.server.process.wait(seconds) is None


# A child that is gone.


class Load:
    """Requests one after the other, each on a connection of its own."""

    def __init__(self, program: Program) -> None:
        where = urlsplit(program.url)
        self._where = (where.hostname or "", where.port or 0)
        self.answered = self.unanswered = 0
        self.over = False

    async def run(self) -> None:
        while not self.over:
            client = await RawClient.open(*self._where)  # a refused connection ends the test
            try:
                self.answered += (await client.ask(post(chat(max_tokens=4)))).status == 200
            except (ConnectionError, asyncio.IncompleteReadError):
                self.unanswered += 1
            finally:
                with suppress(ConnectionError):
                    await client.close()


async def test_five_kills_under_load_refuse_nobody_and_cost_only_what_the_killed_ones_had_begun(
    keeper: Keeper, tmp_path: Path
) -> None:
    program = served(keeper, tmp_path)
    clients = [Load(program) for _ in range(4)]
    async with asyncio.TaskGroup() as tasks:
        for client in clients:
            tasks.create_task(client.run())
        for _ in range(5):
            answered = sum(each.answered for each in clients)
            await asyncio.sleep(0.3)
            await asyncio.to_thread(replaced, program)
            assert sum(each.answered for each in clients) > answered
        for client in clients:
            client.over = True
    assert sum(each.unanswered for each in clients) <= 5 * len(clients)
    assert program.server.alive
    assert [each["cause"] for each in program.events("child_ended")] == ["killed"] * 5
    assert program.event("serving", 6)["traffic"] == program.event("serving")["traffic"]


def test_who_asks_while_nobody_serves_waits_and_is_answered(keeper: Keeper, tmp_path: Path) -> None:
    program = served(keeper, tmp_path)
    where, before = urlsplit(program.url), program.child()
    os.kill(before, signal.SIGSTOP)  # what connects now is in the kernel's queue, and the child will never take it
    with socket.create_connection((where.hostname, where.port), DEADLINE_SECONDS) as client:
        client.sendall(post(chat(max_tokens=4), headers=("Connection: close",)))
        os.kill(before, signal.SIGKILL)
        assert rest_of(client).startswith(b"HTTP/1.1 200 ")


def test_a_child_that_hangs_is_ended_and_followed(keeper: Keeper, tmp_path: Path) -> None:
    program = served(keeper, tmp_path, "--hang-seconds", "1")
    replaced(program, signal.SIGSTOP)
    ended = program.event("child_ended")
    assert (ended["cause"], ended["code"]) == ("hung", -signal.SIGKILL)
    assert send(f"{program.url}/v1/chat/completions", chat(max_tokens=4), **AUTHORIZED)[0] == 200


def test_a_supervisor_that_was_stopped_for_a_while_finds_its_child_alive(keeper: Keeper, tmp_path: Path) -> None:
    program = served(keeper, tmp_path, "--hang-seconds", "4")
    before = program.child()
    os.kill(before, signal.SIGSTOP)
    watch(program, 1.2)  # it reads the last sign of life
    program.signal(signal.SIGSTOP)
    watch(program, 4.5)
    program.signal(signal.SIGCONT)
    watch(program, 0.7)  # it looks again before the child runs
    os.kill(before, signal.SIGCONT)
    watch(program, 1.5)
    assert program.child() == before
    assert program.events("child_ended") == []


def test_a_child_that_leaves_by_itself_is_followed_too(keeper: Keeper, tmp_path: Path) -> None:
    program = served(keeper, tmp_path)
    replaced(program, signal.SIGTERM)
    assert [(each["cause"], each["code"]) for each in program.events("child_ended")] == [("exited", 0)]


def bare(keeper: Keeper, folder: Path, *arguments: str) -> Program:
    """A supervisor whose children get these arguments, without a look at them before."""
    with socket.create_server(("127.0.0.1", 0)) as traffic, socket.create_server(("127.0.0.1", 0)) as admin:
        sockets = {"traffic": [traffic.fileno()], "admin": [admin.fileno()]}
        spec = json.dumps({"sockets": sockets, "hangSeconds": 10})
        argv = [sys.executable, "-I", "-S", supervisor.__file__, spec, *arguments]
        passed = (traffic.fileno(), admin.fileno())
        return Program(keeper.start("supervisor", argv, folder / "supervisor.log", pass_fds=passed))


def test_children_that_die_at_their_start_come_slower_and_slower_and_do_not_hold_up_the_end(
    keeper: Keeper, tmp_path: Path
) -> None:
    program = bare(keeper, tmp_path, "--no-such-flag")
    program.event("child_ended", 6)
    assert [each["nextIn"] for each in program.events("child_ended")[:6]] == [0, 0.1, 0.2, 0.4, 0.8, 1.6]
    assert {(each["cause"], each["code"]) for each in program.events("child_ended")} == {("exited", 2)}
    program.signal(signal.SIGTERM)
    assert program.ended() == 0


def test_a_signal_that_comes_while_the_child_starts_is_an_end_in_good_order(keeper: Keeper, tmp_path: Path) -> None:
    program = bare(keeper, tmp_path, "--lame-duck-seconds", "0")
    until("the child starts", lambda: children(program.pid) != [])
    program.signal(signal.SIGTERM)
    assert program.ended() == 0
    assert program.events("child_ended") == []


def test_restarts_are_counted_by_their_cause(keeper: Keeper, tmp_path: Path) -> None:
    program = served(keeper, tmp_path)
    replaced(program)
    assert 'kvquota_child_restarts_total{cause="killed"} 1.0' in program.metrics


# The end.


def test_a_signal_to_the_whole_group_is_one_signal_to_the_child(keeper: Keeper, tmp_path: Path) -> None:
    program = served(keeper, tmp_path)
    with begun_stream(program, 60) as client:
        os.killpg(program.pid, signal.SIGINT)
        assert rest_of(client).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert program.ended() == 0


def test_after_the_signal_a_child_that_dies_is_followed_by_nobody(keeper: Keeper, tmp_path: Path) -> None:
    program = served(keeper, tmp_path, "--lame-duck-seconds", "30")
    before = program.child()
    program.signal(signal.SIGTERM)
    program.event("draining")
    os.kill(before, signal.SIGKILL)
    assert program.ended() == 128 + signal.SIGKILL
    assert len(program.events("serving")) == 1


def refuses(where: tuple[str, int]) -> bool:
    try:
        socket.create_connection(where, DEADLINE_SECONDS).close()
    except ConnectionRefusedError:
        return True
    return False


def test_after_the_drain_nobody_is_kept_waiting_for_a_child_that_will_not_come(keeper: Keeper, tmp_path: Path) -> None:
    program = served(keeper, tmp_path, "--drain-seconds", "0")
    found = urlsplit(program.url)
    where = (found.hostname or "", found.port or 0)
    with socket.create_connection(where, DEADLINE_SECONDS) as slow:
        slow.sendall(post(chat())[:-1])
        watch(program, 0.2)
        program.signal(signal.SIGTERM)
        program.event("stopped")
        until("it refuses", lambda: refuses(where))
        assert program.server.alive  # the child still gives the slow one a moment
    assert program.ended() == 0


def test_a_child_whose_supervisor_is_gone_leaves_the_ports_to_the_next(keeper: Keeper, tmp_path: Path) -> None:
    program = served(keeper, tmp_path)
    where, child = urlsplit(program.url), program.child()
    program.signal(signal.SIGKILL)
    until("the child is gone", lambda: not Path(f"/proc/{child}").exists())
    socket.create_server((where.hostname or "", where.port or 0)).close()


# What it is.


def test_no_other_program_gets_onto_the_port(keeper: Keeper, tmp_path: Path) -> None:
    where = urlsplit(served(keeper, tmp_path).url)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with pytest.raises(OSError, match="in use") as caught:
            other.bind((where.hostname, where.port))
    assert caught.value.errno == errno.EADDRINUSE


def test_it_is_small_and_has_nothing_of_the_sidecar_in_it(keeper: Keeper, tmp_path: Path) -> None:
    program = served(keeper, tmp_path)
    status = Path(f"/proc/{program.pid}/status").read_text()
    resident_kib = int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1])
    assert resident_kib < 16 * 1024
    assert "uvloop" not in Path(f"/proc/{program.pid}/maps").read_text()
    assert "uvloop" in Path(f"/proc/{program.child()}/maps").read_text()


def test_as_process_1_it_reaps_what_others_left_behind_and_ends_on_sigterm(keeper: Keeper, tmp_path: Path) -> None:
    need_namespaces()
    outer = served(keeper, tmp_path, before=("unshare", "--pid", "--fork", "--mount-proc"))
    init = children(outer.pid)[0]
    inside = Program(Server("init", outer.server.process, outer.server.log))
    assert "NSpid:\t" in Path(f"/proc/{init}/status").read_text()
    assert Path(f"/proc/{init}/status").read_text().split("NSpid:")[1].split("\n")[0].split()[-1] == "1"
    orphan = "(sleep 0.2; exit 3) & exit 0"
    subprocess.run(["nsenter", f"--target={init}", "--pid", "--mount", "sh", "-c", orphan], check=True, timeout=30)
    until("the orphan is its child", lambda: len(children(init)) == 2)
    until("the orphan is reaped", lambda: len(children(init)) == 1)
    assert inside.events("child_ended") == []
    os.kill(init, signal.SIGTERM)
    assert outer.ended() == 0
    assert [each["event"] for each in outer.lines()][-2:] == ["draining", "stopped"]
