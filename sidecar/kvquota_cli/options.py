"""The options of every command. Light: it imports no command."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Final

from kvquota_cli.parsing import Once, Parser, ShowVersion, namespace_name, object_name, path
from kvquota_cli.planning import flags

_DESCRIPTION = """\
GPU KV-cache memory quotas for LLM serving.

  kvquota demo                                two tenants, one floods: what the quota does, in under a minute
  kvquota plan --model llama-3.1-8b ...       how a card is divided for a model, and how many requests fit
  kvquota check manifests/                    are these ModelPools, TenantQuotas and Secrets right?
  kvquota render --manifests manifests/ ...   what would this pod get?
  kvquota keygen --secret search-api-key      a new API key as a Secret
  kvquota serve --manifests manifests/ ...    quotas in front of one engine, without a cluster
"""
_CODES = "exit codes: 0 ok, 1 a problem was found, 2 wrong usage or input, 3 no plan is possible"

_KEYGEN = """\
Print a new random API key of 256 bits. With --secret, print the Secret that holds it and, as comments, the lines
that let a TenantQuota's clients in with it:

  kvquota keygen --secret search-api-key --namespace inference --quota search | kubectl apply -f -
"""


_CHECK = """\
Check ModelPools, TenantQuotas and Secrets without a cluster: every object as the API server would, and every pool with
its quotas and keys as the operator would. Prints file:line, object, field and what to do. Ends with 0 when nothing is
wrong (warnings are not), with 1 when something is, with 2 when there is nothing to check. A folder is read as `kubectl
apply -f` reads it: its own files, not its sub-folders'; - is the standard input. A misspelt field is found here even
where the client that applies the files would drop it without a word.
"""

_RENDER = """\
What a pod would get, without a cluster: its config as JSON, or with -o yaml the ConfigMap that the operator stores.
Reads ModelPools, TenantQuotas, Secrets, ConfigMaps and Pods from a folder and decides as the operator does, before any
engine has come up. The pod may be one of them, as `kubectl get pods -o yaml` prints it, or one that is not there yet.

  kvquota render --manifests examples/ --namespace inference --pool llama-8b --pod llama-8b-0
"""

_SERVE = """\
Quotas in front of one engine, without a cluster: reads ModelPools, TenantQuotas, Secrets and ConfigMaps from a folder,
decides as the operator does and stands before the engine as the sidecar does. Edit the files, and a change is in force
within about a second; a broken edit is said and passed over.

  kvquota serve --manifests examples/ --engine http://127.0.0.1:8000 --listen 127.0.0.1:8080
"""

_DEMO = """\
Two tenants before one engine: steady asks short questions, flood sends long prompts without end. First quotas only
count, then they are enforced. Needs nothing but this program; ends with 0 only when steady was never refused, flood
was, and nothing leaked.
"""


def parser() -> argparse.ArgumentParser:
    """The whole command line. `command` names the module of `kvquota_cli.commands` to run."""
    whole = Parser(prog="kvquota", description=_DESCRIPTION, epilog=_CODES, formatter_class=_AsWritten)
    whole.add_argument("--version", action=ShowVersion, help="print the version and end")
    commands = whole.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    for name, summary, description, surplus, add in _COMMANDS:
        add(
            commands.add_parser(
                name, help=summary, description=description, surplus=surplus, formatter_class=_AsWritten
            )
        )
    return whole


class _AsWritten(argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of descriptions."""


def _keygen(command: argparse.ArgumentParser) -> None:
    command.add_argument("--secret", metavar="NAME", help="print a Secret of this name that holds the key")
    command.add_argument("-n", "--namespace", metavar="NS", default="default", help="of the Secret (%(default)s)")
    command.add_argument("--key", metavar="KEY", default="key", help="which entry of the Secret (%(default)s)")
    command.add_argument("--quota", metavar="NAME", help="the TenantQuota that the comments speak of; needs --secret")


def _check(command: argparse.ArgumentParser) -> None:
    command.add_argument("paths", metavar="FILE|DIR", type=path, nargs="+", help="manifests; - for standard input")
    command.add_argument(
        "-n",
        "--namespace",
        metavar="NS",
        type=namespace_name,
        default="default",
        help="of objects without one (%(default)s)",
    )
    command.add_argument("-o", "--output", choices=("text", "json"), default="text", help="(%(default)s)")


def _render(command: argparse.ArgumentParser) -> None:
    once = partial(command.add_argument, action=Once)
    once("--manifests", metavar="DIR", type=path, required=True, help="folder of YAML files, or one file")
    once("--pod", metavar="NAME", type=object_name, required=True, help="the pod, among the manifests or not there yet")
    once("--pool", metavar="NAME", type=object_name, help="ModelPool of a pod that is not there yet (the only one)")
    once("-n", "--namespace", metavar="NS", type=namespace_name, help="of the pod and of objects without one (default)")
    once("-o", "--output", choices=("json", "yaml"), help="(json)")


def _serve(command: argparse.ArgumentParser) -> None:
    once = partial(command.add_argument, action=Once)
    once("--manifests", metavar="DIR", type=path, required=True, help="folder of YAML files")
    command.add_argument("--engine", metavar="URL", default="http://127.0.0.1:8000", help="(%(default)s)")
    command.add_argument("--listen", metavar="HOST:PORT", default="127.0.0.1:8080", help="for clients (%(default)s)")
    command.add_argument(
        "--admin", metavar="HOST:PORT", default="127.0.0.1:9600", help="for usage and metrics (%(default)s)"
    )
    once("--pool", metavar="NAME", help="which ModelPool (default: the one that the engine serves)")
    once(
        "-n",
        "--namespace",
        metavar="NS",
        type=namespace_name,
        help="only its pools; also of objects without one (default)",
    )
    once("--token-file", metavar="FILE", type=path, help="token of the admin port; made if it is not there (temporary)")
    command.add_argument(
        "--drain-seconds", metavar="N", default="10", help="running requests may go on after Ctrl-C (%(default)s)"
    )


def _demo(command: argparse.ArgumentParser) -> None:
    command.add_argument("--engine", metavar="URL", help="an engine that has vLLM's /metrics (a fake one)")
    command.add_argument("--kubeconfig", metavar="FILE", type=Path, help="show it through the API server of this file")
    command.add_argument("--seconds", metavar="N", type=float, default=24.0, help="how long clients send (%(default)g)")
    command.add_argument("--plain", action="store_true", help="lines instead of a live table")


_COMMANDS: Final = (
    ("keygen", "make an API key", _KEYGEN, "a Secret's name goes with --secret NAME", _keygen),
    ("demo", "see what the quota does", _DEMO, "an engine goes with --engine URL", _demo),
    ("plan", "plan a model's memory on a card", flags.DESCRIPTION, "a model goes with --model FILE|PRESET", flags.add),
    ("check", "check manifests offline", _CHECK, "", _check),
    ("render", "print what a pod would get", _RENDER, "a folder goes with --manifests DIR", _render),
    ("serve", "run without a cluster", _SERVE, "a folder goes with --manifests DIR", _serve),
)  # name, help, description, what to do with a word too many, and what adds the options
