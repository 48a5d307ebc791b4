"""The certificates of the webhook: own ones in a Secret, or those that somebody else puts into a folder.

Every replica does all of it, and none needs to lead: the Secret is written only over the version that was read, and an
API server is told of a new authority before anybody shows a certificate of it. Nothing is renewed by a restart.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import ssl
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

from cryptography import x509

from kvquota_operator.adapters.api import CORE, Api, Json, object_path
from kvquota_operator.adapters.authority import (
    Authority,
    Lifetimes,
    Signed,
    is_due,
    next_authority,
    read_authority,
    sign,
)
from kvquota_operator.logs import told
from kvquota_operator.ports import Clock, ClusterError, ConflictError
from kvquota_operator.reconcile.manifests import decoded, secret_data
from kvquota_operator.webhook_settings import ServiceName

CONFIGURATIONS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
BUNDLE_KEY: Final = "ca.crt"
AUTHORITY_KEY: Final = "ca.key"
LOOK_SECONDS: Final = 60.0  # between two looks: an authority's last third is months, a removed bundle is back in one
SPREAD_SECONDS: Final = 10.0  # until every API server has heard of a changed configuration: it watches for it
FOLDER_SECONDS: Final = 10.0  # between two looks; the kubelet takes a minute or two to bring a renewed certificate
FIRST_RETRY_SECONDS: Final = 0.5
LONGEST_RETRY_SECONDS: Final = 15.0

log = logging.getLogger(__name__)


class Certificates(Protocol):
    """Keeps `context` good for the webhook's name, until cancelled; sets `ready` when it is for the first time."""

    @property
    def until(self) -> datetime | None:
        """When the certificate that is shown ends, UTC; None before there is one."""
        ...

    async def keep(self, context: ssl.SSLContext, ready: asyncio.Event) -> None: ...


def server_context() -> ssl.SSLContext:
    """For a server, without a certificate yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


class OwnCertificates:
    """An authority in the Secret of the webhook, whose certificate every API server gets by its configuration."""

    def __init__(
        self, api: Api, clock: Clock, service: ServiceName, host: str = "", *, lifetimes: Lifetimes | None = None
    ) -> None:
        """`host`: an address or name at which the webhook is reached besides its Service; empty: none."""
        self._api = api
        self._clock = clock
        self._service = service
        self._names = [f"{service.name}.{service.namespace}.svc", *([host] if host else [])]
        self._lifetimes = lifetimes or Lifetimes()
        self._shown: tuple[Authority, x509.Certificate] | None = None

    @property
    def until(self) -> datetime | None:
        return None if self._shown is None else self._shown[1].not_valid_after_utc

    async def keep(self, context: ssl.SSLContext, ready: asyncio.Event) -> None:
        pause = FIRST_RETRY_SECONDS
        while True:
            try:
                await self._look(context)
            except ClusterError as error:
                _complain(error, self._service)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_RETRY_SECONDS)
                continue
            ready.set()
            pause = FIRST_RETRY_SECONDS
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self, context: ssl.SSLContext) -> None:
        authority = await self._authority()
        is_news = await self._tell(authority)
        is_new = self._shown is None or self._shown[0] != authority
        if self._shown is not None and (is_news or is_new):  # another replica may just have told of it
            await asyncio.sleep(SPREAD_SECONDS)
        now = self._clock.now()
        if self._shown is None or is_new or is_due(self._shown[1], now):
            self._show(context, authority, now)

    async def _authority(self) -> Authority:
        """The one in the Secret, or its successor; the replica that comes second takes that of the first."""
        path = object_path(CORE, self._service.namespace, "secrets", self._service.name)
        while True:
            stored = await self._api.get(path)
            data = stored.get("data") or {}
            found = read_authority(decoded(data.get(BUNDLE_KEY)), decoded(data.get(AUTHORITY_KEY)))
            now = self._clock.now()
            if found is not None and not is_due(found.newest, now):
                return found
            made = next_authority(found, self._service.name, now, self._lifetimes)
            try:
                await self._api.merge(path, _secret(made, stored["metadata"]["resourceVersion"]))
            except ConflictError:
                continue
            log.info("made a certificate authority for the webhook", extra=told("webhook_authority_made"))
            return made

    async def _tell(self, authority: Authority) -> bool:
        """Have every webhook of the configuration believe the authority; whether that is new to some."""
        path = f"{CONFIGURATIONS}/{self._service.configuration}"
        found = await self._api.get(path)
        bundle = base64.b64encode(authority.bundle).decode()
        hooks = found.get("webhooks") or []
        if all(hook["clientConfig"].get("caBundle") == bundle for hook in hooks):
            return False
        await self._api.apply(path, _configuration(found, bundle))
        return True

    def _show(self, context: ssl.SSLContext, authority: Authority, now: datetime) -> None:
        signed = sign(authority, self._names, now, self._lifetimes)
        load(context, signed)
        certificate = x509.load_pem_x509_certificate(signed.certificate)
        self._shown = (authority, certificate)
        until = certificate.not_valid_after_utc.isoformat()
        log.info("the webhook has a certificate until %s", until, extra=told("webhook_certificate_shown", until=until))


class FolderCertificates:
    """tls.crt and tls.key in a folder, as cert-manager's Secret is mounted; read again when they change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shown: Signed | None = None
        self._until: datetime | None = None

    @property
    def until(self) -> datetime | None:
        return self._until

    async def keep(self, context: ssl.SSLContext, ready: asyncio.Event) -> None:
        told_of = ""
        while True:
            try:
                self._look(context)
            except (OSError, ssl.SSLError, ValueError) as error:
                if str(error) != told_of:
                    told_of = str(error)
                    log.warning(
                        "the webhook's certificate in %s cannot be used (%s): put tls.crt and tls.key there, a pair in"
                        " PEM, or leave --webhook-certificates out to have own ones made; waiting for the pair",
                        self._folder, error, extra=told("webhook_certificate_unusable", reason=type(error).__name__),
                    )  # fmt: skip
            else:
                told_of = ""
                ready.set()
            await asyncio.sleep(FOLDER_SECONDS)

    def _look(self, context: ssl.SSLContext) -> None:
        found = Signed((self._folder / "tls.crt").read_bytes(), (self._folder / "tls.key").read_bytes())
        if found != self._shown:
            load(context, found)
            self._until = x509.load_pem_x509_certificates(found.certificate)[0].not_valid_after_utc
            self._shown = found


def load(context: ssl.SSLContext, signed: Signed) -> None:
    """Show this certificate on new connections. No key touches a disk.

    Raises ssl.SSLError; then what was shown before still is: OpenSSL forgets its key at the first half of a bad pair,
    so a pair is tried elsewhere first.
    """
    for each in (server_context(), context):
        with ExitStack() as stack:
            paths = [_in_memory(stack, content) for content in (signed.certificate, signed.key)]
            each.load_cert_chain(paths[0], paths[1], password="")  # or OpenSSL asks a terminal for one, and waits


def _in_memory(stack: ExitStack, content: bytes) -> str:
    file = stack.enter_context(os.fdopen(os.memfd_create("kvquota-webhook"), "wb"))
    file.write(content)
    file.flush()
    return f"/proc/self/fd/{file.fileno()}"


def _secret(authority: Authority, version: str) -> Json:
    values = {BUNDLE_KEY: authority.bundle, AUTHORITY_KEY: authority.key}
    return {
        "metadata": {"resourceVersion": version},
        "data": secret_data(values),
    }


def _configuration(found: Json, bundle: str) -> Json:
    """What is ours of the configuration: the rest belongs to whoever installed it."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": found["metadata"]["name"]},
        "webhooks": [{"name": hook["name"], "clientConfig": {"caBundle": bundle}} for hook in found["webhooks"]],
    }


def _complain(error: ClusterError, service: ServiceName) -> None:
    log.warning(
        "the certificates of the webhook cannot be kept: %s. Secret %s/%s and MutatingWebhookConfiguration %s are made"
        " by the chart (webhook.enabled)",
        error, service.namespace, service.name, service.configuration,
        extra=told("webhook_certificates_failed", reason=error.reason),
    )  # fmt: skip
