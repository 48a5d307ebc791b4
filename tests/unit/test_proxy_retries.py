"""Bodies that were refused and come again."""

import pytest

from kvquota_sidecar.estimate.shape import Shape, read_shape
from kvquota_sidecar.proxy.identity import Directory
from kvquota_sidecar.proxy.retries import MAX_BYTES, MAX_KEPT, Retries
from sidecar_rig import config

PATH = "/v1/completions"
HERE = Directory(config(), None)
ELSEWHERE = Directory(config(), None)


def body(number: int = 0, size: int = 1) -> bytes:
    return b'{"prompt":"%d%b"}' % (number, b"x" * size)


def shape(text: bytes) -> Shape:
    found = read_shape(PATH, text)
    assert isinstance(found, Shape)
    return found


REFUSED = body()
RETRIES = {
    "the same body again": (("a", PATH, body(), HERE), shape(REFUSED)),
    "another tenant's": (("b", PATH, body(), HERE), None),
    "to another route": (("a", "/v1/chat/completions", body(), HERE), None),
    "another body": (("a", PATH, body(1), HERE), None),
    "under another config": (("a", PATH, body(), ELSEWHERE), None),
}


@pytest.mark.parametrize(("asked", "found"), RETRIES.values(), ids=RETRIES)
def test_what_is_recalled(asked: tuple[str, str, bytes, Directory], found: Shape | None) -> None:
    retries = Retries()
    retries.keep("a", PATH, REFUSED, HERE, shape(REFUSED))
    assert retries.recall(*asked) == found


def test_nothing_is_recalled_of_what_was_refused_under_the_config_before() -> None:
    retries = Retries()
    retries.keep("a", PATH, body(0), HERE, shape(body(0)))
    retries.keep("a", PATH, body(1), ELSEWHERE, shape(body(1)))
    assert retries.recall("a", PATH, body(0), ELSEWHERE) is None
    assert retries.recall("a", PATH, body(1), ELSEWHERE) == shape(body(1))


def test_a_long_body_is_not_kept() -> None:
    retries, long = Retries(), body(size=MAX_BYTES)
    retries.keep("a", PATH, REFUSED, HERE, shape(REFUSED))
    retries.keep("a", PATH, long, HERE, shape(long))
    assert retries.recall("a", PATH, long, HERE) is None
    assert len(retries) == 1


def test_so_many_bodies_are_kept_and_one_more_begins_anew() -> None:
    retries, texts = Retries(), [body(number) for number in range(MAX_KEPT + 1)]
    for text in [*texts[:-1], texts[0]]:
        retries.keep("a", PATH, text, HERE, shape(text))
    assert all(retries.recall("a", PATH, text, HERE) for text in texts[:-1])
    retries.keep("a", PATH, texts[-1], HERE, shape(texts[-1]))
    assert [text for text in texts if retries.recall("a", PATH, text, HERE)] == texts[-1:]
