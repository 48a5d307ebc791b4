"""What one body costs the loop, however it is made: no more than a few times what it takes to parse it."""

import time
from collections.abc import Callable

import msgspec
import pytest

from kvquota_sidecar.estimate.shape import Shape, read_shape
from kvquota_sidecar.proxy.engine_body import engine_body

COMPLETION = "/v1/completions"
FEW, ONCE = 8.0, 1.6  # times a parser's time: a look at each key in Python takes 20, one more at each id 2
OBJECTS = b"[" + b'{"a":"b"},' * 6000 + b"{}]"


def least_seconds(work: Callable[[], object]) -> float:
    """Of this thread's processor time, so that a neighbour matters less."""
    taken = []
    for _ in range(9):
        began = time.thread_time()
        work()
        taken.append(time.thread_time() - began)
    return min(taken)


BODIES = {
    "100,000 token ids": (ONCE, b'{"prompt":[%s1]}' % (b"12345," * 100_000)),
    "100,000 token ids in 1,000 prompts": (FEW, b'{"prompt":[%s[1]]}' % (b"[%s1]," % (b"12345," * 99) * 999)),
    "many objects in a field that no engine knows": (FEW, b'{"prompt":"a","x":%s}' % OBJECTS),
    "beside a field that changes": (FEW, b'{"prompt":"a","priority":1,"x":%s}' % OBJECTS),
    "more of them than are taken": (FEW, b'{"prompt":"a","x":[%s{}]}' % (b'{"a":"b"},' * 16_000)),
    "a second key behind them": (FEW, b'{"prompt":"a","x":%s,"y":1,"y":1}' % OBJECTS),
    "quotes written as escapes": (FEW, b'{"prompt":"a","x":%s,"y":"\\u0022"}' % OBJECTS),
    "texts that are empty": (FEW, b'{"prompt":"a","x":[%s""]}' % (b'"",' * 20_000)),
}


@pytest.mark.parametrize(("most", "body"), BODIES.values(), ids=BODIES)
def test_no_body_takes_many_times_as_long_as_it_takes_to_parse(most: float, body: bytes) -> None:
    def whole() -> None:
        shape = read_shape(COMPLETION, body, engine="vLLM")
        if isinstance(shape, Shape):
            engine_body(body, COMPLETION, shape, b'"salt"', 0)

    parsed = least_seconds(lambda: msgspec.json.decode(body))
    assert least_seconds(whole) < most * parsed
