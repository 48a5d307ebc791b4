"""One answer while it grows: what each choice got, what is due to be sent, what the usage says.

It does not know HTTP or time; the caller feeds it the engine's emissions in order.
"""

from dataclasses import dataclass, field

from kvquota_fakeengine import tokens
from kvquota_fakeengine.misbehaviour import Usage
from kvquota_fakeengine.requests import GenerateRequest
from kvquota_fakeengine.sequences import Emission, Finish
from kvquota_fakeengine.settings import EngineSettings
from kvquota_fakeengine.wire import Piece, TokenCounts


@dataclass(slots=True)
class _Choice:
    text: str = ""
    unsent: str = ""
    unsent_tokens: int = 0
    produced: int = 0
    cached: int = 0
    finish: Finish | None = None


@dataclass(slots=True)
class Answer:
    """`tokens_per_piece` tokens of a choice are sent together; `usage` says whether counts are honest."""

    asked: GenerateRequest
    settings: EngineSettings
    tokens_per_piece: int
    usage: Usage
    _choices: list[_Choice] = field(init=False)
    _first_cached: int | None = None

    def __post_init__(self) -> None:
        self._choices = [_Choice() for _ in self.asked.works]

    @property
    def longest(self) -> int:
        """Tokens of the choice that has most."""
        return max(choice.produced for choice in self._choices)

    def take(self, index: int, emission: Emission) -> Piece | None:
        """Add a token; the piece that is now due, if one is."""
        choice = self._choices[index]
        text = "" if emission.token is None else tokens.piece(emission.token)
        choice.text += text
        choice.unsent += text
        choice.unsent_tokens += 1
        choice.produced += 1
        choice.cached = emission.cached_tokens
        choice.finish = emission.finish
        if self._first_cached is None:
            self._first_cached = emission.cached_tokens
        if emission.finish is None and choice.unsent_tokens < self.tokens_per_piece:
            return None
        due = Piece(index=index, text=choice.unsent, finish=emission.finish)
        choice.unsent, choice.unsent_tokens = "", 0
        return due

    def pieces(self) -> list[Piece]:
        """Every choice as a whole."""
        return [Piece(index=index, text=c.text, finish=c.finish) for index, c in enumerate(self._choices)]

    def counts_of(self, index: int) -> TokenCounts | None:
        """The running usage of one choice; None where the usage is to be missing."""
        work = self.asked.works[index]
        return self._told(len(work.prompt), self._choices[index].produced, cached=0)

    def opening_counts(self) -> TokenCounts | None:
        return self._told(self.asked.prompt_tokens, 0, cached=0)

    def stream_counts(self) -> TokenCounts | None:
        """The usage at the end of a stream: `cached` is what the first token's sequence found in the cache."""
        return self._told(self.asked.prompt_tokens, self._output, cached=self._first_cached or 0)

    def whole_counts(self) -> TokenCounts | None:
        """The usage of an answer in one document: `cached` is that of the last prompt."""
        return self._told(self.asked.prompt_tokens, self._output, cached=self._choices[-1].cached)

    @property
    def _output(self) -> int:
        return sum(choice.produced for choice in self._choices)

    def _told(self, prompt: int, output: int, *, cached: int) -> TokenCounts | None:
        if self.usage is Usage.MISSING:
            return None
        if self.usage is Usage.WRONG:
            prompt, output = 2 * prompt + 1, 2 * output + 1
        full_blocks = len(self.asked.prompts[0]) // self.settings.block_tokens * self.settings.block_tokens
        return TokenCounts(
            prompt=prompt,
            output=output,
            cached=cached if self.settings.prompt_tokens_details else None,
            newly_cached=max(0, full_blocks - cached),
        )
