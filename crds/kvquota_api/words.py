"""Kinds of short text that resources consist of, and in words what is asked of each. Pure."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from kvquota_api.meta import DNS_LABEL_PATTERN, DNS_NAME_PATTERN, SECRET_KEY_PATTERN

REASON_PATTERN: Final = r"^[A-Z][A-Za-z0-9]*$"
LABEL_VALUE_PATTERN: Final = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"
LABEL_KEY_PATTERN: Final = r"^([a-z0-9.-]+/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
OPTIONAL_DNS_LABEL_PATTERN: Final = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$"
HEADER_NAME_PATTERN: Final = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"  # RFC 9110, token
HEADER_VALUE_PATTERN: Final = r"^[!-~]+( [!-~]+)*$"
PRESET_PATTERN: Final = r"^[a-z0-9][-a-z0-9.]*$"
PRINTABLE_PATTERN: Final = r"^[!-~]+$"

_DNS_LABEL_WORDS: Final = "may have lower-case letters, digits and - only, with a letter or digit at both ends"
_LABEL_WORDS: Final = "may have letters, digits and -_. only, with a letter or digit at both ends"

PATTERN_WORDS: Final = {
    DNS_LABEL_PATTERN: _DNS_LABEL_WORDS,
    OPTIONAL_DNS_LABEL_PATTERN: _DNS_LABEL_WORDS,
    DNS_NAME_PATTERN: "may have lower-case letters, digits, - and . only, with a letter or digit around each .",
    SECRET_KEY_PATTERN: "may have letters, digits and -_. only",
    REASON_PATTERN: "must be one word that begins with a capital letter",
    LABEL_VALUE_PATTERN: _LABEL_WORDS,
    LABEL_KEY_PATTERN: _LABEL_WORDS,
    HEADER_NAME_PATTERN: "must be the name of an HTTP header",
    HEADER_VALUE_PATTERN: "may have printable ASCII and single spaces inside only",
    PRESET_PATTERN: "may have lower-case letters, digits, - and . only",
    PRINTABLE_PATTERN: "may have printable ASCII without spaces only",
}

TenantName = Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL_PATTERN)]
AnonymousTenant = Annotated[str, Field(max_length=63, pattern=OPTIONAL_DNS_LABEL_PATTERN)]
TierName = Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL_PATTERN)]
ContainerName = Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL_PATTERN)]
ReasonWord = Annotated[str, Field(min_length=1, max_length=64, pattern=REASON_PATTERN)]
LabelValue = Annotated[str, Field(max_length=63, pattern=LABEL_VALUE_PATTERN)]
LabelKey = Annotated[str, Field(min_length=1, max_length=317, pattern=LABEL_KEY_PATTERN)]
HeaderName = Annotated[str, Field(min_length=1, max_length=64, pattern=HEADER_NAME_PATTERN)]
HeaderValue = Annotated[str, Field(min_length=1, max_length=253, pattern=HEADER_VALUE_PATTERN)]
PresetName = Annotated[str, Field(min_length=1, max_length=63, pattern=PRESET_PATTERN)]
Printable = Annotated[str, Field(min_length=1, max_length=253, pattern=PRINTABLE_PATTERN)]
