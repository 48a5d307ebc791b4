"""`kvquota serve`: quotas in front of one engine, without a cluster."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import uvloop

from kvquota_cli.embedded.admin_token import token_file
from kvquota_cli.embedded.engine_greeting import greet
from kvquota_cli.embedded.engine_models import ask_models
from kvquota_cli.embedded.identity import new_secret, new_uid
from kvquota_cli.embedded.objects import Objects
from kvquota_cli.embedded.pool_choice import Candidate, NoChoiceError, Wish, choose
from kvquota_cli.embedded.session import Session
from kvquota_cli.embedded.starting import candidates, require_plan
from kvquota_cli.embedded.watching import FolderWatch
from kvquota_cli.errors import CliError, ExitCode
from kvquota_cli.tables.objects import pool_table, quota_table
from kvquota_cli.tables.table import printed
from kvquota_operator.reconcile.observed import PoolKey
from kvquota_sidecar import descriptors
from kvquota_sidecar.memory import memory_limit
from kvquota_sidecar.settings import Bind, Settings, SettingsError, read_settings
from kvquota_sidecar.supervisor import STANDARD_OUTPUT, Outlet

ANY_PORT: Final = 0
NO_LAME_DUCK: Final = 0.0  # seconds: no Service sends anybody here, so nobody has to be waited for


def run(arguments: argparse.Namespace) -> ExitCode:
    """Serve until SIGTERM or Ctrl-C. Raises CliError when it cannot begin."""
    settings = _settings(arguments)
    logging.basicConfig(level=logging.WARNING, format="kvquota serve: %(message)s", stream=sys.stderr)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(arguments, settings))
    return ExitCode.OK


def _settings(arguments: argparse.Namespace) -> Settings:
    given = ["--listen", arguments.listen, "--engine", arguments.engine, "--admin", arguments.admin]
    try:
        descriptors.require()
        settings = read_settings([*given, "--drain-seconds", arguments.drain_seconds], {}, memory_bytes=memory_limit())
    except SettingsError as error:
        raise CliError(str(error)) from error
    if settings.listen == settings.admin and settings.listen.port != ANY_PORT:
        raise CliError(f"--listen and --admin are both {arguments.listen}: give them two different ports")
    return replace(settings, lame_duck_seconds=NO_LAME_DUCK)


async def _serve(arguments: argparse.Namespace, settings: Settings) -> None:
    objects = Objects(arguments.namespace or "default", new_uid)
    watch = FolderWatch(arguments.manifests, objects, _say)
    _first_look(watch, arguments.manifests)
    start = await _start(objects, Wish(arguments.pool, arguments.namespace), settings)
    key = PoolKey(start.pool.namespace, start.pool.name)
    await require_plan(objects, key, datetime.now(UTC))
    secret = new_secret()
    with token_file(arguments.token_file, secret.token) as (path, token):
        outlet = Outlet(STANDARD_OUTPUT)
        session = Session(objects, key, settings, replace(secret, token=token), tell=_say, log=outlet)
        try:
            async with session:
                await _stay(session, objects, watch, start, path)
        finally:
            outlet.close()


def _first_look(watch: FolderWatch, folder: Path) -> None:
    try:
        watch.first_look()
    except OSError as error:
        raise CliError(f"cannot read {folder}: {error.strerror}; give --manifests a folder of YAML files") from error


@dataclass(frozen=True, slots=True)
class _Start:
    """`answered`: whether the engine did at the start."""

    pool: Candidate
    answered: bool


async def _start(objects: Objects, wish: Wish, settings: Settings) -> _Start:
    answer = await ask_models(settings.engine)
    try:
        choice = choose(candidates(objects), wish, answer.names)
    except NoChoiceError as error:
        raise CliError(str(error)) from error
    _say(f"pool {choice.pool}: {choice.why}")
    if choice.warning is not None:
        _say(f"warning: {choice.warning}")
    if answer.oddity is not None:
        _say(f"warning: {answer.oddity}")
    if answer.trouble is not None:
        _say(f"the engine does not answer yet ({answer.trouble}): until it does, requests are answered with 502")
    return _Start(choice.pool, answered=answer.trouble is None)


async def _stay(session: Session, objects: Objects, watch: FolderWatch, start: _Start, token: Path) -> None:
    """Serve until a signal; a second one does not wait for running requests."""
    leaving = asyncio.Event()

    def leave() -> None:
        if leaving.is_set():
            session.sidecar.hurry()
        leaving.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave)
    loop.add_signal_handler(signal.SIGUSR1, _say_tables, objects)
    _say_how(session, start.pool, token)
    async with asyncio.TaskGroup() as tasks:
        beside = [
            tasks.create_task(watch.run(session.touch)),
            tasks.create_task(_say_ready(session)),
        ]
        if not start.answered:
            beside.append(tasks.create_task(greet(session.sidecar.settings.engine, start.pool, _say)))
        await session.until(leaving)
        for task in beside:
            task.cancel()
    _say("leaving: running requests may end; again Ctrl-C cuts them")


async def _say_ready(session: Session) -> None:
    await session.configured.wait()
    _say("quotas are in force; edit the manifests, and a change is in force within about a second")


def _say_how(session: Session, pool: Candidate, token: Path) -> None:
    traffic, admin = _url(session.sidecar.traffic_address), _url(session.sidecar.admin_address)
    body = f'{{"model": "{pool.model}", "messages": [{{"role": "user", "content": "hello"}}], "max_tokens": 16}}'
    _say(f"clients use {traffic} with a tenant's API key, e.g.")
    _print(f"  curl {traffic}/v1/chat/completions -H 'Content-Type: application/json' \\")
    _print(f"    -H 'Authorization: Bearer KEY' -d '{body}'")
    _say("a tenant sees its own quota and usage with the same key:")
    _print(f"  curl {traffic}/v1/usage -H 'Authorization: Bearer KEY'")
    _say("everybody's usage and metrics are on the admin port:")
    _print(f'  curl {admin}/v1/usage -H "Authorization: Bearer $(cat {token})"')
    _print(f"  curl {admin}/metrics")
    _say("SIGUSR1 prints the tables of `kubectl get kvmp,tq`; Ctrl-C ends")


def _say_tables(objects: Objects) -> None:
    now = datetime.now(UTC)
    pools = [stored.whole() for _, stored in objects.all_of("ModelPool")]
    quotas = [stored.whole() for _, stored in objects.all_of("TenantQuota")]
    _print("\n".join([*printed(pool_table(pools, now)), "", *printed(quota_table(quotas, now))]))


def _url(bind: Bind) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(bind.host, bind.host)  # noqa: S104 - read, not bound
    return f"http://{host}:{bind.port}"


def _say(sentence: str) -> None:
    _print(f"kvquota serve: {sentence}")


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
