"""What a client is told when it does not get what it asked: codes, sentences, and how they are written. Pure."""

from kvquota_sidecar.refusals.codes import Code
from kvquota_sidecar.refusals.refusal import Refusal, refuse

__all__ = ["Code", "Refusal", "refuse"]
