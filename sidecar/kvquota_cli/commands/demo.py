"""`kvquota demo`: what the quota does, shown in under a minute."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import secrets
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import uvloop

from kvquota_cli.demo.display import Display, LiveDisplay, PlainDisplay
from kvquota_cli.demo.embedded_stage import EmbeddedStage
from kvquota_cli.demo.engine_facts import ask_engine
from kvquota_cli.demo.going_on import Started, going_on
from kvquota_cli.demo.kubeconfig import require_kubeconfig
from kvquota_cli.demo.performance import Performance
from kvquota_cli.demo.scenario import TENANTS, EngineFacts, Scenario, Setting, UnfitEngineError, scenario_of
from kvquota_cli.demo.stage import Stage, url_of
from kvquota_cli.demo.verdict import Outcome, summary
from kvquota_cli.errors import CliError, ExitCode
from kvquota_cli.keys import new_key
from kvquota_cli.wrapping import terminal_columns, wrapped
from kvquota_fakeengine.server import FakeEngineServer
from kvquota_fakeengine.settings import EngineSettings
from kvquota_sidecar import descriptors
from kvquota_sidecar.proxy.engine_side import EngineAddress
from kvquota_sidecar.settings import SettingsError, read_settings

FAKE: Final = EngineSettings(
    model="demo-model", blocks=1025, max_model_len=4096, decode_rate=100.0, prefill_rate=20_000.0, by_priority=True
)
EMBEDDED_NAMESPACE: Final = "demo"
SHORTEST_SECONDS: Final = 6.0  # both acts, each long enough for a few requests
LONGEST_SECONDS: Final = 600.0
DESCRIPTORS: Final = 128  # that all its clients at once, the engine and the sidecar take


def run(arguments: argparse.Namespace) -> ExitCode:
    """Show it. PROBLEM when it did not hold. Raises CliError when it cannot begin."""
    if not SHORTEST_SECONDS <= arguments.seconds <= LONGEST_SECONDS:
        raise CliError(f"--seconds is a number from {SHORTEST_SECONDS:g} to {LONGEST_SECONDS:g}")
    try:
        descriptors.require(DESCRIPTORS)
    except SettingsError as error:
        raise CliError(str(error)) from error
    if arguments.kubeconfig is not None:
        require_kubeconfig(arguments.kubeconfig)
    logging.getLogger().setLevel(logging.ERROR)  # what fails at first and is tried again is no news here
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # the fake engine's clients are cut on purpose
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            outcome = runner.run(_stoppable(arguments))
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise CliError("stopped before the end, and everything put away", ExitCode.PROBLEM) from None
    print("\n".join(_ending(outcome, terminal_columns())))
    return ExitCode.OK if outcome.held else ExitCode.PROBLEM


async def _stoppable(arguments: argparse.Namespace) -> Outcome:
    """SIGTERM ends it as Ctrl-C does: in order."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await _demo(arguments)


async def _demo(arguments: argparse.Namespace) -> Outcome:
    async with AsyncExitStack() as stack:
        engine = await _engine(arguments.engine, stack)
        facts = await ask_engine(engine)
        scenario = _scenario(facts)
        setting = _setting(arguments.kubeconfig)
        display = stack.enter_context(_display(arguments))
        display.say(_opening(scenario, arguments.engine))
        stage = await _stage(arguments.kubeconfig, scenario, setting, engine, stack)
        display.say(_place(stage, arguments.kubeconfig, setting))
        return await Performance(stage, scenario, setting, arguments.seconds, display).run()


def _setting(kubeconfig: Path | None) -> Setting:
    namespace = EMBEDDED_NAMESPACE if kubeconfig is None else f"kvquota-demo-{secrets.token_hex(3)}"
    return Setting(namespace, {tenant: new_key(secrets.token_bytes) for tenant in TENANTS})


async def _stage(
    kubeconfig: Path | None, scenario: Scenario, setting: Setting, engine: EngineAddress, stack: AsyncExitStack
) -> Stage:
    if kubeconfig is None:
        return await stack.enter_async_context(EmbeddedStage(scenario, setting, engine))
    cluster = importlib.import_module("kvquota_cli.demo.cluster_stage")
    stage: Stage = await stack.enter_async_context(cluster.ClusterStage(scenario, setting, engine, kubeconfig))
    return stage


def _place(stage: Stage, kubeconfig: Path | None, setting: Setting) -> str:
    where = (
        "in this process, without a cluster"
        if kubeconfig is None
        else f"through the API server of {kubeconfig}, in the new namespace {setting.namespace}"
    )
    return f"The quotas are decided and enforced {where}; clients send to {url_of(stage)}."


async def _engine(url: str | None, stack: AsyncExitStack) -> EngineAddress:
    if url is None:
        server = await stack.enter_async_context(FakeEngineServer(FAKE))
        url = server.base_url
    try:
        return read_settings(["--engine", url], {}).engine
    except SettingsError as error:
        raise CliError(str(error)) from error


def _scenario(facts: EngineFacts) -> Scenario:
    try:
        return scenario_of(facts)
    except UnfitEngineError as error:
        raise CliError(str(error)) from error


def _display(arguments: argparse.Namespace) -> Display:
    return PlainDisplay() if arguments.plain or not sys.stdout.isatty() else LiveDisplay()


def _opening(scenario: Scenario, url: str | None) -> str:
    facts, flood = scenario.facts, scenario.flood
    which = "an engine without a model, in this process" if url is None else f"{facts.model} at {url}"
    return (
        f"The engine: {which}, with a KV cache of {facts.usable_tokens:,} tokens. Two tenants: steady asks short"
        f" questions, flood sends {flood.words:,} words a time from {flood.clients} clients and never waits."
    )


def _ending(outcome: Outcome, columns: int) -> list[str]:
    told = [line for each in summary(outcome) for line in wrapped(each, columns)]
    if not outcome.held:
        return [*told, "", "It did NOT hold: see what FAILED above."]
    return [*told, "", "It held. To go on:", *going_on(_started(), columns)]


def _started() -> Started:
    examples = Path("examples", "modelpool.yaml").is_file()
    return Started(sys.argv[0], sys.executable, str(Path.cwd()), examples)
