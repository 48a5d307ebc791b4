"""What the values of single flags may be, for argparse. Pure: each function gives the value, or raises the sentence."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Final

from kvquota_api.amounts import exact_quantity
from kvquota_api.meta import DNS_LABEL_PATTERN, DNS_NAME_PATTERN
from kvquota_api.quoting import quoted

LONGEST_LABEL: Final = 63  # characters, by RFC 1123
LONGEST_NAME: Final = 253  # characters, by RFC 1123
SIDECAR_ALONE: Final = "64Mi"  # of memory, of which the sidecar keeps no bodies of requests: its --max-buffered-mib

# As container runtimes read it: a registry, a path in lower case, a tag, a digest.
_IMAGE: Final = re.compile(
    r"([A-Za-z0-9.:\[\]-]+/)?[a-z0-9]+([._/-]+[a-z0-9]+)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@[a-z0-9]+:[0-9a-f]{32,})?"
)
_CPU: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,3}|m)?")
_MEMORY: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,3})?([kMG]|[KMG]i)?")


def is_label(text: str) -> bool:
    """Whether Kubernetes takes it as the name of a namespace or of a Service."""
    return len(text) <= LONGEST_LABEL and re.fullmatch(DNS_LABEL_PATTERN, text) is not None


def namespace(text: str) -> str:
    """The name of a namespace, which is never empty: an empty one is none to Kubernetes, and so all of them."""
    if not is_label(text):
        raise ArgumentTypeError(
            f"{quoted(text)} is not the name of a namespace: write lower-case letters, digits and hyphens, as in"
            " inference"
        )
    return text


def object_name(text: str) -> str:
    """The name of an object such as a Lease."""
    if len(text) > LONGEST_NAME or not re.fullmatch(DNS_NAME_PATTERN, text):
        raise ArgumentTypeError(
            f"{quoted(text)} is not a name of Kubernetes: write lower-case letters, digits, hyphens and dots, as in"
            " kvquota-operator"
        )
    return text


def folder(text: str) -> Path:
    """A path, which is never empty: an empty one is the current directory to everybody else."""
    if not text:
        raise ArgumentTypeError("no folder is named: write the path of the one with tls.crt and tls.key")
    return Path(text)


def image(text: str) -> str:
    """What a container can be started from."""
    if not _IMAGE.fullmatch(text):
        raise ArgumentTypeError(f"{quoted(text)} is not an image: write one as in registry.example/kvquota/sidecar:1.0")
    return text


def resources(text: str) -> tuple[str, str]:
    """CPU and memory of a sidecar, with which it can run."""
    cpu, comma, memory = text.partition(",")
    if not comma or not _CPU.fullmatch(cpu) or not _MEMORY.fullmatch(memory):
        raise ArgumentTypeError(f"{quoted(text)} is not CPU,MEMORY: write 200m,256Mi")
    if not exact_quantity(cpu):
        raise ArgumentTypeError(f"with CPU {cpu} a sidecar cannot run: write more than 0, as in 200m,256Mi")
    if exact_quantity(memory) <= exact_quantity(SIDECAR_ALONE):
        raise ArgumentTypeError(
            f"memory {memory} is too little: a sidecar alone takes up to {SIDECAR_ALONE}, and a third of what is beyond"
            " holds requests that wait: write more, as in 200m,256Mi"
        )
    return cpu, memory
