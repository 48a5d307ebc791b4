"""Bytes of a wire as fuzzers want them: cut into reads, and spoilt in a few places."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from hypothesis import strategies as st


def cuts(size: int) -> st.SearchStrategy[list[int]]:
    """Places to cut among the first `size` bytes."""
    return st.lists(st.integers(0, size), max_size=12)


def split(data: bytes, places: Iterable[int]) -> list[bytes]:
    """The same bytes in pieces; none of them empty."""
    within = sorted({0, len(data), *(place for place in places if place < len(data))})
    return [data[start:end] for start, end in pairwise(within)]


def single(data: bytes) -> list[bytes]:
    """Byte by byte."""
    return split(data, range(len(data)))


@st.composite
def spoilt(draw: st.DrawFn, whole: st.SearchStrategy[bytes], pieces: Sequence[bytes]) -> bytes:
    """The bytes with a few of them changed, lost, doubled or put in; `pieces`: what may be put in besides."""
    data = draw(whole)
    for _ in range(draw(st.integers(0, 2))):
        start, end = sorted(draw(st.tuples(*[st.integers(0, len(data))] * 2)))
        end = min(end, start + draw(st.integers(0, 4)))
        put_in = draw(st.one_of(st.sampled_from(pieces), st.binary(max_size=3), st.just(data[start:end] * 2)))
        data = data[:start] + put_in + data[end:]
    return data
