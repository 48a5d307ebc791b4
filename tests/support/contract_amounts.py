"""Quantities as users write them and what Kubernetes makes of them.

One table for both: `kvquota_api.amounts` in the unit tests, and a real API server in the integration tests.
"""

from typing import Final

AS_KUBERNETES: Final = (
    ("0", 0),
    ("00005", 5),
    ("+5", 5),
    ("5.", 5),
    (".5", 1),
    ("0.1", 1),
    ("1.0000000000001", 2),
    ("0.0000000001", 1),
    ("1n", 1),
    ("1u", 1),
    ("100m", 1),
    ("12e-3", 1),
    ("1e-30", 1),
    ("1k", 1000),
    ("1e3", 1000),
    ("1E3", 1000),
    ("1e+3", 1000),
    ("1e0", 1),
    ("1E", 10**18),
    ("1.5E", 15 * 10**17),
    ("500M", 500 * 10**6),
    ("36.5G", 36_500_000_000),
    ("1.1Ki", 1127),
    ("1.5Gi", 1610612736),
    ("80Gi", 85899345920),
    ("0.0001Ei", 115292150460685),
    ("7.99999Ei", 9223360507639729740),
    ("9223372036854775807", 2**63 - 1),
    ("8Ei", 2**63 - 1),
    ("10Ei", 2**63 - 1),
    ("123456789123456789.5Mi", 2**63 - 1),
)
"""Text -> bytes, a fraction rounded up; what is more than 2^63-1 bytes is that."""
