"""How the sidecar of a pool stands before the engine and tells its clients apart.

Decides the fields, their defaults and what is sensible among them. Pure.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictInt

from kvquota_api.meta import ADMIN_PORT
from kvquota_api.resource import KeyRef, Model
from kvquota_api.rules import Rule, exactly_one_of
from kvquota_api.words import AnonymousTenant, HeaderName, Printable

UnprivilegedPort = Annotated[StrictInt, Field(ge=1024, le=65535)]


class JwtKeys(Model):
    """Where the public keys (a JSON Web Key Set) of the issuer are: exactly one of configMap, secret."""

    config_map: KeyRef | None = None
    """Key of a ConfigMap."""
    secret: KeyRef | None = None
    """Key of a Secret of type kvquota.dev/api-key."""

    one_value = True
    rules = (exactly_one_of("configMap", "secret"),)


class Jwt(Model):
    """Clients that show a JSON Web Token. Only asymmetric signatures are accepted."""

    issuer: Annotated[str, Field(min_length=1, max_length=2048)]
    """The token's iss must be this."""
    audience: Printable
    """The token's aud must contain this."""
    tenant_claim: Printable = "tenant"
    """The claim that names the tenant."""
    keys_ref: JwtKeys
    """Where the public keys of the issuer are."""


class TrustedHeader(Model):
    """A header that names the tenant, set by a peer that proves itself. From anyone else it is stripped."""

    name: HeaderName
    """Name of the header."""
    shared_secret_ref: KeyRef
    """The Secret and its key that the peer must show."""


class ClientIdentity(Model):
    """How the tenant of a request is found."""

    api_key_header: HeaderName = "Authorization"
    """The header that carries the API key; in Authorization it follows the word Bearer."""
    jwt: Jwt | None = None
    """Accept JSON Web Tokens too. Default: no."""
    trusted_header: TrustedHeader | None = None
    """Accept a header of a trusted peer too. Default: no."""

    rules = (
        Rule(
            cel="!has(self.trustedHeader) || self.trustedHeader.name.lowerAscii() != self.apiKeyHeader.lowerAscii()",
            message="trustedHeader.name and apiKeyHeader must differ: rename one of them",
            holds=lambda identity: (
                identity.trusted_header is None
                or identity.trusted_header.name.lower() != identity.api_key_header.lower()
            ),
            field="trustedHeader.name",
        ),
    )


class Sidecar(Model):
    """How the sidecar stands before the engine."""

    takeover: Literal["Port", "None"] = "Port"
    """Port: stand on the engine's own port and move the engine. None: users send their traffic to sidecar.port."""
    port: UnprivilegedPort | None = None
    """With takeover None: the port the sidecar listens on. Default: none; with takeover Port it is the engine's."""
    flags: Literal["Set", "Advise"] = "Set"
    """Set: engine arguments that apply the partition are added to the pod. Advise: the status says which to add."""
    admin_port: UnprivilegedPort = ADMIN_PORT
    """Port of the sidecar's own health, metrics and sync."""
    anonymous_tenant: AnonymousTenant = ""
    """Tenant of clients that are not known; empty refuses them."""
    failure_policy: Literal["Closed", "Open"] = "Closed"
    """While a sidecar lacks config or identity. Closed: refuse. Open: let everything through and count it."""
    authorization: Literal["Forward", "Remove"] = "Forward"
    """What the engine sees of the client's credentials. Forward: the one that counted. Remove: nothing."""
    identity: ClientIdentity = ClientIdentity()
    """How the tenant of a request is found."""

    rules = (
        Rule(
            cel="has(self.port) == (self.takeover == 'None')",
            message="set port with takeover None, and leave it out with takeover Port: there it is the engine's own",
            holds=lambda sidecar: (sidecar.port is not None) == (sidecar.takeover == "None"),
            field="port",
        ),
        Rule(
            cel="!has(self.port) || self.port != self.adminPort",
            message="port and adminPort must differ: change one of them",
            holds=lambda sidecar: sidecar.port != sidecar.admin_port,
            field="port",
        ),
    )
