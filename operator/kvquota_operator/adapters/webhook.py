"""The webhook that puts pods under quota: the API server asks it about every new pod with the label.

An own small server on aiohttp, which the operator has already, and not kopf's: kopf decides about resources that it has
found by scanning the cluster, changes objects by merge patches, and ends with its watches, while this has to answer on
every replica, whoever leads, from the moment that the process is ready.

It keeps nothing: pools are read for each question as they are at that moment, so that a pod that is created together
with its pool, or right after an edit of it, gets what that says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final

import msgspec
from aiohttp import web

from kvquota_api.meta import POOL_LABEL
from kvquota_api.model_pool import ModelPool
from kvquota_api.pod_config import PodConfig
from kvquota_operator.adapters.api import CORE, Api, Json, find, object_path
from kvquota_operator.adapters.certificates import Certificates, FolderCertificates, OwnCertificates, server_context
from kvquota_operator.adapters.listening import Place, serving
from kvquota_operator.adapters.statuses import KVQUOTA
from kvquota_operator.injection.admission import Review, ReviewError, answer, read_review
from kvquota_operator.injection.asking import asks, labels_of, selecting
from kvquota_operator.injection.injecting import inject
from kvquota_operator.injection.outcomes import Allowed, Outcome, Refused, SidecarImage, Target
from kvquota_operator.injection.planned import keeps_last_plan, target_of
from kvquota_operator.injection.waiting import RETRY_SECONDS, is_new, not_yet
from kvquota_operator.logs import told
from kvquota_operator.ports import Clock, ClusterError
from kvquota_operator.reading.objects import StoredPool, read_model_config, read_pool
from kvquota_operator.reconcile.manifests import config_from_configmap, pool_label, pool_secret_name
from kvquota_operator.reconcile.observed import InvalidSeen
from kvquota_operator.settings import Address
from kvquota_operator.webhook_settings import WebhookSettings

PATH: Final = "/inject"
MAX_BODY_BYTES: Final = 4 * 2**20  # an API server takes 3 MiB, and a pod is in a review once
REVIEWS_AT_ONCE: Final = 8  # a body takes up to 25 times its bytes while it is decided on
DECIDING_SECONDS: Final = 4.0  # from the first byte to the answer: the API server waits for 5
READ_SECONDS: Final = 2.0  # for the config of a model, which may be as large as a ConfigMap
COPIES_AT_ONCE: Final = 16  # durable copies of one answer: all have one plan, unless it has just changed
CLOSING_SECONDS: Final = 3.0  # for answers under way when the operator ends

log = logging.getLogger(__name__)


class Injector:
    """Decides about pods by what the API server has at that moment."""

    def __init__(self, api: Api, clock: Clock, image: SidecarImage) -> None:
        self._api = api
        self._clock = clock
        self._image = image

    async def decide(self, review: Review) -> Outcome:
        """What becomes of a pod. Raises ClusterError where its pool cannot be read."""
        if not asks(review.pod):
            return Allowed(review.pod)
        pools = selecting(labels_of(review.pod), await self._pools(review.namespace))
        if not pools:
            return Allowed(review.pod, (_no_pool(review.namespace),))
        first, *others = pools
        if isinstance(first.pool, InvalidSeen):
            return Refused(f"ModelPool {first.key.name} selects the pod and cannot be read: {first.pool.message}")
        outcome = inject(review.pod, await self._target(first.pool, first.status), self._image, review.config_map)
        if isinstance(outcome, Allowed) and await self._lacks_secret(first.pool):
            return not_yet(first.pool)
        if isinstance(outcome, Allowed) and others:
            conflict = f"ModelPool {others[0].key.name} selects the pod too: the older {first.key.name} governs it"
            return Allowed(outcome.pod, (*outcome.warnings, conflict))
        return outcome

    async def _pools(self, namespace: str) -> list[StoredPool]:
        bodies, _ = await self._api.list(object_path(KVQUOTA, namespace, "modelpools"))
        return [read_pool(body) for body in bodies]

    async def _target(self, pool: ModelPool, status: Mapping[str, Any]) -> Target:
        """The last valid plan is only in the durable copies: these are read where there is no other, until one has the
        plan that the status names."""
        model_config = await self._model_config(pool)
        target = target_of(pool, model_config, ())
        if target.kv is not None or not keeps_last_plan(pool, model_config):
            return target
        collection = object_path(CORE, pool.metadata.namespace, "configmaps")
        selector = f"{POOL_LABEL}={pool_label(pool.metadata.name)}"
        any_valid: Target | None = None
        async for bodies, _ in self._api.pages(collection, selector, COPIES_AT_ONCE):
            found = target_of(pool, model_config, _configs(bodies), status)
            if found.kv is not None and status.get("planHash") in (None, found.plan_hash):
                return found
            if any_valid is None and found.kv is not None:
                any_valid = found
        return any_valid or target

    async def _lacks_secret(self, pool: ModelPool) -> bool:
        """Of a pool that is not new nobody asks."""
        if not is_new(pool, self._clock.now()):
            return False
        path = object_path(CORE, pool.metadata.namespace, "secrets", pool_secret_name(pool.metadata.name))
        return await find(self._api.get(path)) is None

    async def _model_config(self, pool: ModelPool) -> Mapping[str, Any] | None:
        ref = pool.spec.model.config.config_map_ref
        if ref is None:
            return None
        path = object_path(CORE, pool.metadata.namespace, "configmaps", ref.name)
        return read_model_config(await find(self._api.get(path, timeout_seconds=READ_SECONDS)), ref.key)


class Webhook:
    """The server. `ready`: it answers, with a certificate that the API server believes."""

    def __init__(self, injector: Injector, certificates: Certificates, listen: Address) -> None:
        self._injector = injector
        self._certificates = certificates
        self._listen = listen
        self._context = server_context()
        self.ready = asyncio.Event()
        self._at_once = asyncio.Semaphore(REVIEWS_AT_ONCE)

    @property
    def certificate_until(self) -> datetime | None:
        """When the certificate that is shown ends, UTC; None before there is one."""
        return self._certificates.until

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Have the address while the context lasts. Raises ListenError.

        Until there is a certificate no handshake succeeds, so nothing is answered before `ready`.
        """
        application = web.Application(client_max_size=MAX_BODY_BYTES)
        application.add_routes([web.post(PATH, self._review)])
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=CLOSING_SECONDS)
        async with serving(runner, Place(self._listen, "the webhook", "--webhook-listen"), self._context):
            yield

    async def certify(self) -> None:
        """Have a good certificate at all times, until cancelled."""
        await self._certificates.keep(self._context, self.ready)

    async def _review(self, request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(DECIDING_SECONDS):
                body = await request.read()
                async with self._at_once:
                    return await self._answer(body)
        except TimeoutError:
            return web.Response(status=503, text="the pod could not be decided on in time: try again in a moment\n")

    async def _answer(self, body: bytes) -> web.Response:
        try:
            review = read_review(msgspec.json.decode(body))
        except (ReviewError, msgspec.DecodeError, RecursionError) as error:
            return web.Response(status=400, text=f"{error}\n")
        try:
            outcome = await self._injector.decide(review)
        except ClusterError as error:
            why = f"the pod's ModelPool cannot be read now ({error}): try again in a moment"
            outcome = Refused(why, RETRY_SECONDS)
        _note(review, outcome)
        return web.json_response(answer(review, outcome))


def webhook_of(settings: WebhookSettings, api: Api, clock: Clock) -> Webhook:
    """The webhook as it is to be, with certificates of the kind that is asked for."""
    certificates: Certificates
    if settings.certificates is None:
        certificates = OwnCertificates(api, clock, settings.service, settings.listen.host)
    else:
        certificates = FolderCertificates(settings.certificates)
    return Webhook(Injector(api, clock, settings.image), certificates, settings.listen)


def _configs(bodies: Iterable[Json]) -> list[PodConfig]:
    found = [config_from_configmap(body) for body in bodies]
    return [config for config in found if isinstance(config, PodConfig)]


def _no_pool(namespace: str) -> str:
    return (
        f"no ModelPool of namespace {namespace} selects this pod, so it is not under quota: make its labels match one"
    )


def _note(review: Review, outcome: Outcome) -> None:
    meta = review.pod["metadata"]
    pod = meta.get("name") or f"{meta.get('generateName', '')}..."
    if isinstance(outcome, Refused):
        log.warning(
            "refused pod %s/%s: %s", review.namespace, pod, outcome.message,
            extra=told("pod_refused", namespace=review.namespace, pod=pod),
        )  # fmt: skip
    elif outcome.pod is not review.pod:
        log.info(
            "put pod %s/%s under quota", review.namespace, pod,
            extra=told("pod_injected", namespace=review.namespace, pod=pod),
        )  # fmt: skip
