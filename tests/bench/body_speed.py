"""How long one body keeps the loop busy: `python tests/bench/body_speed.py`.

Prints processor milliseconds for the shape of a body and what is made of it for the engine, and how often a JSON parser
could have read it meanwhile. A look at each key in Python takes 20 times a parser's time, one more at each id twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import msgspec

from kvquota_sidecar.estimate.shape import Shape, read_shape
from kvquota_sidecar.proxy.engine_body import engine_body

COMPLETION = "/v1/completions"
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
    "100,000 token ids": b'{"prompt":[%s1]}' % (b"12345," * 100_000),
    "100,000 token ids in 1,000 prompts": b'{"prompt":[%s[1]]}' % (b"[%s1]," % (b"12345," * 99) * 999),
    "many objects in a field that no engine knows": b'{"prompt":"a","x":%s}' % OBJECTS,
    "beside a field that changes": b'{"prompt":"a","priority":1,"x":%s}' % OBJECTS,
    "more of them than are taken": b'{"prompt":"a","x":[%s{}]}' % (b'{"a":"b"},' * 16_000),
    "a second key behind them": b'{"prompt":"a","x":%s,"y":1,"y":1}' % OBJECTS,
    "quotes written as escapes": b'{"prompt":"a","x":%s,"y":"\\u0022"}' % OBJECTS,
    "texts that are empty": b'{"prompt":"a","x":[%s""]}' % (b'"",' * 20_000),
}


def main() -> None:
    for name, body in BODIES.items():
        parsed, whole = least_seconds(partial(msgspec.json.decode, body)), least_seconds(partial(taken, body))
        print(f"{name:45} {whole * 1e3:7.2f} ms {whole / parsed:6.1f} times a parser")


def taken(body: bytes) -> None:
    """All that is done with a body before it goes to the engine."""
    shape = read_shape(COMPLETION, body, engine="vLLM")
    if isinstance(shape, Shape):
        engine_body(body, COMPLETION, shape, b'"salt"', 0)


if __name__ == "__main__":
    main()
