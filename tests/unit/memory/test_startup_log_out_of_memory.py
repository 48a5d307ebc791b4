"""Allocations that failed, in all the forms in which PyTorch, on CUDA and HIP, and ggml have said so."""

from __future__ import annotations

import pytest

from kvquota_api.memory.startup_log import Size, parse_log
from kvquota_api.memory.startup_log.facts import OutOfMemory

UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def amount(text: str, line: int = 1) -> Size:
    number, unit = text.split()
    factor = UNITS[unit]
    return Size(round(float(number) * factor), 0 if factor == 1 else -(-factor // 200), line)


def failed(line: int = 1, rank: str | None = None, **parts: str | int) -> OutOfMemory:
    sizes = {name: amount(value, line) for name, value in parts.items() if isinstance(value, str)}
    numbers = {name: value for name, value in parts.items() if isinstance(value, int)}
    return OutOfMemory(line=line, rank=rank, **sizes, **numbers)  # type: ignore[arg-type]  # figures by name


ADVICE = (
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid"
    " fragmentation.  See documentation for Memory Management "
    " (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
FORMS = {
    "the usual form": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 270.00 MiB. GPU 1 has a total capacity of"
        " 21.98 GiB of"
        " which 156.94 MiB is free. Including non-PyTorch memory, this process has 21.80 GiB memory in use. Of the"
        " allocated"
        " memory 21.42 GiB is allocated by PyTorch, and 24.12 MiB is reserved by PyTorch but unallocated." + ADVICE,
        failed(
            tried="270.00 MiB",
            gpu=1,
            capacity="21.98 GiB",
            free="156.94 MiB",
            in_use="21.80 GiB",
            allocated="21.42 GiB",
            reserved_idle="24.12 MiB",
        ),
    ),
    "capacity with a typing error": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB. GPU 0 has a total capacty of"
        " 23.69 GiB"
        " of which 3.09 GiB is free. Including non-PyTorch memory, this process has 20.57 GiB memory in use. Of the"
        " allocated"
        " memory 20.13 GiB is allocated by PyTorch, and 755.50 KiB is reserved by PyTorch but unallocated." + ADVICE,
        failed(
            tried="3.50 GiB",
            gpu=0,
            capacity="23.69 GiB",
            free="3.09 GiB",
            in_use="20.57 GiB",
            allocated="20.13 GiB",
            reserved_idle="755.50 KiB",
        ),
    ),
    "the form of PyTorch 1": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.63 GiB (GPU 0; 44.56 GiB total capacity;"
        " 27.91 GiB already allocated; 565.31 MiB free; 27.93 GiB reserved in total by PyTorch) If reserved memory"
        " is >>"
        " allocated memory try setting max_split_size_mb to avoid fragmentation.",
        failed(
            tried="1.63 GiB",
            gpu=0,
            capacity="44.56 GiB",
            free="565.31 MiB",
            allocated="27.91 GiB",
            reserved_total="27.93 GiB",
        ),
    ),
    "a title that was cut": (
        "[Bug]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB. GPU 0 has a total capacity"
        " of 11.53"
        " GiB of which 187.75 MiB is free. Including non-Py",
        failed(tried="224.00 MiB", gpu=0, capacity="11.53 GiB", free="187.75 MiB"),
    ),
    "a figure that lost its unit, and a name that lost its start": (
        "orch.OutOfMemoryError: CUDA out of memory. Tried to allocate 350.00 MiB. GPU 0 has a total capacity of"
        " 23.68 GiB of"
        " which 212.81",
        failed(tried="350.00 MiB", gpu=0, capacity="23.68 GiB"),
    ),
    "KiB free, then cut": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB. GPU 6 has a total capacity of 44.53"
        " GiB of"
        " which 448.00 KiB is free.",
        failed(tried="2.00 MiB", gpu=6, capacity="44.53 GiB", free="448.00 KiB"),
    ),
    "another process, and more tried than the card has": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 74.16 GiB. GPU 0 has a total capacity of"
        " 44.40 GiB of"
        " which 29.89 GiB is free. Process 2684311 has 14.51 GiB memory in use. Of the allocated memory 13.44 GiB is"
        " allocated"
        " by PyTorch, and 738.96 MiB is reserved by PyTorch but unallocated.",
        failed(
            tried="74.16 GiB",
            gpu=0,
            capacity="44.40 GiB",
            free="29.89 GiB",
            in_use="14.51 GiB",
            in_use_by=2684311,
            allocated="13.44 GiB",
            reserved_idle="738.96 MiB",
        ),
    ),
    "far more tried than the card has": (
        "CUDA out of memory. Tried to allocate 30.29 GiB. GPU 0 has a total capacity of 10.74 GiB of which 3.69 GiB"
        " is free."
        " Including non-PyTorch memory, this process has 6.68 GiB memory in use. Of the allocated memory 6.10 GiB is"
        " allocated"
        " by PyTorch, and 396.58 MiB is reserved by PyTorch but unallocated.",
        failed(
            tried="30.29 GiB",
            gpu=0,
            capacity="10.74 GiB",
            free="3.69 GiB",
            in_use="6.68 GiB",
            allocated="6.10 GiB",
            reserved_idle="396.58 MiB",
        ),
    ),
    "no byte is free": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.70 GiB. GPU 0 has a total capacity of 6.00"
        " GiB of"
        " which 0 bytes is free. Of the allocated memory 2.93 GiB is allocated by PyTorch, and 2.30 GiB is reserved"
        " by PyTorch"
        " but unallocated.",
        failed(
            tried="1.70 GiB",
            gpu=0,
            capacity="6.00 GiB",
            free="0 bytes",
            allocated="2.93 GiB",
            reserved_idle="2.30 GiB",
        ),
    ),
    "memory held by something that is not PyTorch": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacty of"
        " 44.35 GiB"
        " of which 147.88 MiB is free. Process 1107750 has 44.16 GiB memory in use. Of the allocated memory 12.00"
        " GiB is"
        " allocated by PyTorch, and 983.50 KiB is reserved by PyTorch but unallocated.",
        failed(
            tried="512.00 MiB",
            gpu=0,
            capacity="44.35 GiB",
            free="147.88 MiB",
            in_use="44.16 GiB",
            in_use_by=1107750,
            allocated="12.00 GiB",
            reserved_idle="983.50 KiB",
        ),
    ),
    "escaped for a web page": (
        "RuntimeError: CUDA out of memory. Tried to allocate 258.00 MiB (GPU 0; 23.54 GiB total capacity; 11.75 GiB"
        " already"
        " allocated; 572.50 MiB free; 12.40 GiB reserved in total by PyTorch) If reserved memory is &gt;&gt;"
        " allocated memory"
        " try setting max_split_size_mb to avoid fragmentation.",
        failed(
            tried="258.00 MiB",
            gpu=0,
            capacity="23.54 GiB",
            free="572.50 MiB",
            allocated="11.75 GiB",
            reserved_total="12.40 GiB",
        ),
    ),
    "true fragmentation": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 5 has a total capacity of"
        " 79.25 GiB of"
        " which 6.94 MiB is free. Including non-PyTorch memory, this process has 79.23 GiB memory in use. Of the"
        " allocated"
        " memory 56.85 GiB is allocated by PyTorch, and 21.90 GiB is reserved by PyTorch but unallocated.",
        failed(
            tried="20.00 MiB",
            gpu=5,
            capacity="79.25 GiB",
            free="6.94 MiB",
            in_use="79.23 GiB",
            allocated="56.85 GiB",
            reserved_idle="21.90 GiB",
        ),
    ),
    "a card that was left out of the text": (
        "CUDA out of memory. Tried to allocate 5.04 GiB. GPU ... of which ... is free. Including non-PyTorch memory,"
        " this"
        " process has 78.85 GiB memory in use. Of the allocated memory 61.49 GiB is allocated by PyTorch, and 10.07"
        " GiB is"
        " reserved by PyTorch but unallocated.",
        failed(tried="5.04 GiB", in_use="78.85 GiB", allocated="61.49 GiB", reserved_idle="10.07 GiB"),
    ),
    "HIP": (
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.12 GiB. GPU 0 has a total capacity of 19.98"
        " GiB of"
        " which 32.00 MiB is free. Of the allocated memory 18.09 GiB is allocated by PyTorch, and 1.43 GiB is"
        " reserved by"
        " PyTorch but unallocated. If reserved but unallocated memory is large try setting"
        " PYTORCH_HIP_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
        failed(
            tried="1.12 GiB",
            gpu=0,
            capacity="19.98 GiB",
            free="32.00 MiB",
            allocated="18.09 GiB",
            reserved_idle="1.43 GiB",
        ),
    ),
    "a newer link, and graphs with pools of their own": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.25 GiB. GPU 0 has a total capacity of 95.09"
        " GiB of"
        " which 1.11 GiB is free. Including non-PyTorch memory, this process has 93.96 GiB memory in use. Of the"
        " allocated"
        " memory 89.93 GiB is allocated by PyTorch, with 117.88 MiB allocated in private pools (e.g., CUDA Graphs),"
        " and 3.53"
        " GiB is reserved by PyTorch but unallocated. See documentation for Memory Management"
        " (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage)",
        failed(
            tried="1.25 GiB",
            gpu=0,
            capacity="95.09 GiB",
            free="1.11 GiB",
            in_use="93.96 GiB",
            allocated="89.93 GiB",
            reserved_idle="3.53 GiB",
        ),
    ),
    "a small card that is full": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 98.00 MiB. GPU 0 has a total capacity of"
        " 31.73 GiB of"
        " which 6.69 MiB is free. Including non-PyTorch memory, this process has 31.72 GiB memory in use. Of the"
        " allocated"
        " memory 30.02 GiB is allocated by PyTorch, and 1.33 GiB is reserved by PyTorch but unallocated.",
        failed(
            tried="98.00 MiB",
            gpu=0,
            capacity="31.73 GiB",
            free="6.69 MiB",
            in_use="31.72 GiB",
            allocated="30.02 GiB",
            reserved_idle="1.33 GiB",
        ),
    ),
    "wrapped lines": (
        "CUDA out of memory. Tried to\nallocate 1014.00\nMiB. GPU 0 has a total capacity of 15.60 GiB of\nwhich"
        " 73.06 MiB is"
        " free.\nProcess 302189 has 15.52 GiB memory in\nuse. Of the allocated memory 13.55 GiB is\nallocated by"
        " PyTorch, and"
        " 1.82\nGiB is reserved by PyTorch but unallocated.",
        failed(
            tried="1014.00 MiB",
            gpu=0,
            capacity="15.60 GiB",
            free="73.06 MiB",
            in_use="15.52 GiB",
            in_use_by=302189,
            allocated="13.55 GiB",
            reserved_idle="1.82 GiB",
        ),
    ),
    "an engine's process, with no more than the card": (
        "(EngineCore_DP0 pid=412) ERROR 01-01 10:00:00 [core.py:708] torch.OutOfMemoryError: CUDA out of memory."
        " Tried to"
        " allocate 594.00 MiB. GPU 0 has a total capacity of 79.18 GiB of which 500.69 MiB is free.",
        failed(rank="EngineCore_DP0", tried="594.00 MiB", gpu=0, capacity="79.18 GiB", free="500.69 MiB"),
    ),
    "ggml": (
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 16384.00 MiB on device 1: cudaMalloc failed: out of"
        " memory",
        failed(tried="16384.00 MiB", gpu=1),
    ),
}


@pytest.mark.parametrize(("text", "expected"), FORMS.values(), ids=FORMS)
def test_an_allocation_that_failed_is_read(text: str, expected: OutOfMemory) -> None:
    assert parse_log(text).out_of_memory == (expected,)


def test_each_allocation_that_failed_is_one_of_its_own() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 8.00 GiB of which 1.00 MiB is"
        " free.\n"
        "CUDA out of memory. Tried to allocate 4.00 MiB.\n"
        "ran out of memory. Nothing more is known.\n"
    )
    assert parse_log(text).out_of_memory == (
        failed(tried="2.00 MiB", gpu=0, capacity="8.00 GiB", free="1.00 MiB"),
        failed(line=2, tried="4.00 MiB"),
    )


def test_no_engine_is_told_from_an_allocation_alone() -> None:
    assert parse_log(FORMS["the usual form"][0]).engine is None
