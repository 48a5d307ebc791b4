"""What a person can set about the webhook that puts pods under quota. Part of `kvquota_operator.settings`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvquota_operator import flag_values
from kvquota_operator.injection.outcomes import SidecarImage

if TYPE_CHECKING:
    from kvquota_operator.settings import Address

DEFAULT_RESOURCES: Final = ("200m", "256Mi")
OF_NO_USE_ALONE: Final = (  # without --webhook-listen
    "webhook_service",
    "webhook_certificates",
    "sidecar_image",
    "sidecar_pull_policy",
    "sidecar_resources",
)


@dataclass(frozen=True, slots=True)
class ServiceName:
    """The Service of the webhook; its Secret has the same name."""

    namespace: str
    name: str

    @property
    def configuration(self) -> str:
        """The name of the MutatingWebhookConfiguration, which is in no namespace."""
        return f"{self.namespace}-{self.name}"


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """`certificates`: a folder with tls.crt and tls.key that somebody else renews; None: own ones are made."""

    listen: Address
    service: ServiceName
    image: SidecarImage
    certificates: Path | None = None


def add_flags(parser: argparse.ArgumentParser, address: Callable[[str], Address]) -> None:
    """The flags of the webhook; `address` reads [HOST]:PORT."""
    parser.add_argument(
        "--webhook-listen",
        type=address,
        metavar="[HOST]:PORT",
        help="where the API server asks what is to be added to pods (default: nowhere, no pod is changed)",
    )
    parser.add_argument(
        "--webhook-service",
        type=_service,
        metavar="NS/NAME",
        help="the Service in front of it; its Secret is NS/NAME too, its MutatingWebhookConfiguration NS-NAME",
    )
    parser.add_argument(
        "--webhook-certificates",
        type=flag_values.folder,
        metavar="DIR",
        help="a folder with tls.crt and tls.key (default: own ones, kept in the Secret)",
    )
    parser.add_argument(
        "--sidecar-image",
        type=flag_values.image,
        metavar="IMAGE",
        help="what the sidecars of injected pods are started from",
    )
    parser.add_argument(
        "--sidecar-pull-policy",
        choices=("Always", "IfNotPresent", "Never"),
        help="of it (default: IfNotPresent)",
    )
    parser.add_argument(
        "--sidecar-resources",
        type=flag_values.resources,
        metavar="CPU,MEMORY",
        help="what each sidecar asks for and may use (default: 200m,256Mi)",
    )


def webhook_settings(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> WebhookSettings | None:
    """None where no webhook is to be served. Ends the process with a usage message where something is missing."""
    if parsed.webhook_listen is None:
        if given := [flag for flag in OF_NO_USE_ALONE if getattr(parsed, flag) is not None]:
            names = ", ".join(f"--{flag.replace('_', '-')}" for flag in given)
            parser.error(f"without --webhook-listen there is no webhook: give it too, or leave {names} out")
        return None
    if parsed.webhook_service is None or parsed.sidecar_image is None:
        parser.error("--webhook-listen needs --webhook-service NS/NAME and --sidecar-image IMAGE: give both")
    cpu, memory = parsed.sidecar_resources or DEFAULT_RESOURCES
    pull_policy = parsed.sidecar_pull_policy or "IfNotPresent"
    image = SidecarImage(parsed.sidecar_image, pull_policy, cpu=cpu, memory=memory)
    return WebhookSettings(parsed.webhook_listen, parsed.webhook_service, image, parsed.webhook_certificates)


def _service(text: str) -> ServiceName:
    namespace, slash, name = text.partition("/")
    if not slash or not all(flag_values.is_label(each) for each in (namespace, name)):
        raise argparse.ArgumentTypeError(f"{text} is not NAMESPACE/NAME: write kvquota-system/kvquota-operator-webhook")
    return ServiceName(namespace, name)
