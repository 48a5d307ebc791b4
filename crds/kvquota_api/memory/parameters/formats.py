"""In how many bytes a weight is stored, by format.

Decides the bytes of a quantised matrix: its numbers and the scales that go with them (docs/memory.md §4). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from kvquota_api.memory.errors import ModelConfigError
from kvquota_api.quoting import quoted


@dataclass(frozen=True, slots=True)
class Format:
    """`parameter`: bytes of one parameter with its share of scales; `row`: bytes beside, per output.

    `tables`: bytes of one parameter of the embedding and the head, None where they stay unquantised; `padded_experts`:
    the sizes of an expert are rounded up, on every GPU.
    """

    parameter: Fraction
    row: int = 0
    tables: Fraction | None = None
    padded_experts: bool = False


PLAIN_BYTES: Final[Mapping[str, int]] = {"fp32": 4, "bf16": 2, "fp16": 2}
SCALE_BYTES: Final = 2  # of a group of AWQ and GPTQ: 16 bits


def grouped(bits: int, group: int, *, zero_points: bool = True) -> Format:
    """Integers of `bits` with a 16-bit scale, and a zero point of the same bits, per `group` inputs."""
    zero = Fraction(bits, 8) if zero_points else Fraction(0)
    return Format(Fraction(bits, 8) + (SCALE_BYTES + zero) / group)


def _table(numbers: int, size: int) -> Format:
    """A GGUF type of `size` bytes per block of `numbers`; in such a file embedding and head are quantised too."""
    each = Fraction(size, numbers)
    return Format(each, tables=each)


FP8: Final = Format(Fraction(1))
FP8_ROWS: Final = Format(Fraction(1), row=4)  # a 32-bit scale per output
MXFP4: Final = Format(Fraction(17, 32), padded_experts=True)  # 17 bytes per 32
NVFP4: Final = Format(Fraction(9, 16))  # 4 bits and an 8-bit scale per 16
NF4_DOUBLE: Final = Format(
    Fraction(1, 2) + Fraction(1, 64) + Fraction(4, 64 * 256)
)  # scales of 64 in 8 bits, of 256 of them in 32
NF4: Final = Format(Fraction(1, 2) + Fraction(4, 64))  # a 32-bit scale per 64
INT8: Final = Format(Fraction(1))

FORMATS: Final[Mapping[str, Format]] = {
    "fp8": FP8,
    "int8": INT8,
    "int4": grouped(4, 128),
    "nf4": NF4_DOUBLE,
    "mxfp4": MXFP4,
    "nvfp4": NVFP4,
    # GGML_QUANT_SIZES of gguf 0.19: bytes per block.
    "q4_0": _table(32, 18),
    "q4_1": _table(32, 20),
    "q5_0": _table(32, 22),
    "q5_1": _table(32, 24),
    "q8_0": _table(32, 34),
    "q2_k": _table(256, 84),
    "q3_k": _table(256, 110),
    "q4_k": _table(256, 144),
    "q5_k": _table(256, 176),
    "q6_k": _table(256, 210),
    "iq4_xs": _table(256, 136),
    "iq3_s": _table(256, 110),
    "iq2_xxs": _table(256, 66),
    "iq1_m": _table(256, 56),
    "iq1_s": _table(256, 50),
}


def float8_blocks(rows: int, columns: int) -> Format:
    """8-bit floats with a 32-bit scale per tile."""
    return Format(1 + Fraction(4, rows * columns))


def format_of(name: str) -> Format:
    """The format called `name`. Raises ModelConfigError."""
    if name in FORMATS:
        return FORMATS[name]
    raise ModelConfigError(
        f"weightDtype: {quoted(name)} is not known; known are auto, {', '.join(PLAIN_BYTES)}, {', '.join(FORMATS)}."
        " A GGUF file whose name ends in _S, _M or _L mixes types: state the size of the file as that of the weights"
    )
