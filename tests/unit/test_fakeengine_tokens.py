"""The fake engine's tokens: how text is cut, and that nothing is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvquota_fakeengine import tokens


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Hello there", ["Hel", "lo", " the", "re"]),
        ("a, b", ["a", ",", " b"]),
        ("  x", [" ", " x"]),
        ("", []),
        ("é", ["\ufffd", "\ufffd"]),
    ],
    ids=["words", "punctuation", "spaces", "nothing", "a character of two bytes"],
)
def test_text_is_cut_into_pieces_of_three_letters_or_single_bytes(text: str, pieces: list[str]) -> None:
    assert [tokens.piece(token) for token in tokens.encode(text)] == pieces


@given(st.text())
def test_no_text_has_more_tokens_than_bytes(text: str) -> None:
    assert len(tokens.encode(text)) <= len(text.encode("utf-8", "surrogatepass"))


@given(st.text(), st.text())
def test_different_texts_have_different_tokens(one: str, other: str) -> None:
    assert (tokens.encode(one) == tokens.encode(other)) == (one == other)


@given(st.integers(0, 100_000))
def test_every_position_of_an_answer_is_one_token_that_reads_as_it_was_written(position: int) -> None:
    token = tokens.answer_token(position)
    assert tokens.encode(tokens.piece(token)) == [token]
    assert 0 <= token < tokens.VOCABULARY


def test_a_number_that_no_text_has_reads_as_a_replacement_character() -> None:
    assert tokens.piece(7) == "\ufffd"


def test_a_conversation_is_laid_out_turn_by_turn() -> None:
    laid_out = tokens.render_chat([("system", "be"), ("user", "hi")], generation_prompt=True)
    assert laid_out == "<|system|>\nbe<|end|>\n<|user|>\nhi<|end|>\n<|assistant|>\n"
