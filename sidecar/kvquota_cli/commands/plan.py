"""`kvquota plan`: what a model's memory on one card is."""

from __future__ import annotations

import argparse
import importlib
import sys

from kvquota_api.memory.errors import PlanError
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.planning import CardPlan, KvBudget, PlanRequest, plan_card
from kvquota_cli.errors import CliError, ExitCode
from kvquota_cli.planning.asking import plan_request
from kvquota_cli.planning.printing import print_plan
from kvquota_cli.planning.sources import ModelSource, read_source


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print the plan. NO_PLAN when it does not fit or nothing can be planned. Raises CliError."""
    try:
        source = read_source(_model(arguments), arguments.pool)
        return _from_log(arguments, source) if arguments.from_log else _planned(arguments, source)
    except PlanError as error:
        raise CliError(str(error), ExitCode.NO_PLAN) from error


def _model(arguments: argparse.Namespace) -> str:
    if arguments.model is not None:
        named: str = arguments.model
        return named
    if arguments.from_log is None:
        raise CliError("which model? Give --model a config.json, a file with a ModelPool, or the name of a preset")
    preset: str = importlib.import_module("kvquota_cli.planning.comparing").preset_of_log(arguments)
    return preset


def _planned(arguments: argparse.Namespace, source: ModelSource) -> ExitCode:
    plan = plan_card(plan_request(arguments, _base(source)))
    print_plan(arguments, source, plan)
    if plan.problem is None or _is_asked_of_bytes(plan):
        return ExitCode.OK
    print(f"kvquota: {plan.problem}", file=sys.stderr)
    return ExitCode.NO_PLAN


def _is_asked_of_bytes(plan: CardPlan) -> bool:
    """Whether the question was what the engine makes of the bytes, which has an answer whatever fits into it."""
    return plan.partition is None and plan.cache is not None


def _from_log(arguments: argparse.Namespace, source: ModelSource) -> ExitCode:
    """Loaded only when a log is read."""
    comparing = importlib.import_module("kvquota_cli.planning.comparing")
    code: ExitCode = comparing.run(arguments, source, _base(source))
    return code


def _base(source: ModelSource) -> PlanRequest:
    if source.pool is None:
        return PlanRequest(
            source.config, EngineInputs(engine="vLLM"), KvBudget(), assumptions=("engine not given: vllm",)
        )
    request: PlanRequest = importlib.import_module("kvquota_api.memory.plan").request_of(source.pool, source.config)
    return request
