"""The API server of a kubeconfig, as far as the demonstration needs it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import msgspec
from kubernetes.aio.client import ApiClient

from kvquota_api.crd import Resource
from kvquota_api.meta import GROUP, VERSION
from kvquota_cli.errors import CliError, ExitCode
from kvquota_operator.adapters import credentials
from kvquota_operator.adapters.credentials import CredentialsError

REQUEST_SECONDS: Final = 15.0
FIELD_MANAGER: Final = "kvquota-demo"
TABLE: Final = "application/json;as=Table;v=v1;g=meta.k8s.io"
MERGE: Final = "application/merge-patch+json"
CORE: Final = "/api/v1"
CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NAMESPACES: Final = f"{CORE}/namespaces"

Json = dict[str, Any]


class RefusedRequestError(CliError):
    """The API server refused a request; `status` is its HTTP status."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence, ExitCode.PROBLEM)
        self.status = status


def inside(namespace: str, plural: str, name: str = "") -> str:
    """Path of a core object or collection of a namespace."""
    return _joined(f"{NAMESPACES}/{quote(namespace, safe='')}/{plural}", name)


def ours(namespace: str, resource: Resource, name: str = "") -> str:
    """Path of an object or collection of one of our kinds."""
    return _joined(f"/apis/{GROUP}/{VERSION}/namespaces/{quote(namespace, safe='')}/{resource.plural}", name)


def _joined(collection: str, name: str) -> str:
    return f"{collection}/{quote(name, safe='')}" if name else collection


class ApiServer:
    """Requests as plain JSON. All methods raise RefusedRequestError, and CliError where nobody answers."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def get(self, path: str, accept: str = "application/json") -> Json:
        return await self._send("GET", path, accept=accept)

    async def create(self, collection: str, body: Json) -> Json:
        return await self._send("POST", collection, body=body)

    async def merge(self, path: str, body: Json) -> Json:
        return await self._send("PATCH", path, body=body, content_type=MERGE)

    async def delete(self, path: str) -> None:
        """Of an object or a whole collection; what is not there is no error."""
        try:
            await self._send("DELETE", path)
        except RefusedRequestError as error:
            if error.status != 404:
                raise

    async def find(self, path: str) -> Json | None:
        """An object, None where it is not there."""
        try:
            return await self.get(path)
        except RefusedRequestError as error:
            if error.status == 404:
                return None
            raise

    async def _send(
        self,
        method: str,
        path: str,
        *,
        body: Json | None = None,
        accept: str = "application/json",
        content_type: str = "application/json",
    ) -> Json:
        query = [] if method in ("GET", "DELETE") else [("fieldManager", FIELD_MANAGER)]
        headers = {"Accept": accept, "Content-Type": content_type}
        request = await self._client.param_serialize(
            method, path, query_params=query, header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        try:
            answer = await self._client.call_api(*request, _request_timeout=aiohttp.ClientTimeout(REQUEST_SECONDS))
            response: aiohttp.ClientResponse = answer.response
            async with response:
                return _content(response.status, f"{method} {path}", await response.read())
        except (TimeoutError, aiohttp.ClientError) as error:
            raise CliError(
                f"the API server does not answer ({str(error) or type(error).__name__}): check --kubeconfig"
            ) from error


def _content(status: int, request: str, body: bytes) -> Json:
    try:
        content: Any = msgspec.json.decode(body)
    except msgspec.DecodeError:
        content = {}
    if status < 300:
        return content if isinstance(content, dict) else {}
    message = content.get("message") if isinstance(content, dict) else None
    raise RefusedRequestError(status, f"the API server refused {request}: {message or status}")


@asynccontextmanager
async def connected(kubeconfig: Path) -> AsyncIterator[ApiServer]:
    """The API server that the file names. Raises CliError where the file cannot be used."""
    try:
        configuration = await credentials.load(kubeconfig)
    except CredentialsError as error:
        raise CliError(str(error)) from error
    async with ApiClient(configuration) as client:
        yield ApiServer(client)
