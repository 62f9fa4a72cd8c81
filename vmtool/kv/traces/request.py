"""One request of a trace, and what was read of the trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

#: No model's context is longer; a larger number is a mistake or an attack.
MAX_TOKENS: Final = 1 << 26
#: Some 31 years in seconds: beyond, a time is not that of a trace.
MAX_SECONDS: Final = 10**9
#: Tokens of one block of Mooncake's ``hash_ids``.
PREFIX_TOKENS: Final = 512
#: How many bad lines are listed.
LISTED_BAD_LINES: Final = 5
#: Arrival time since any moment in ns, prompt tokens, output tokens, names of the prompt's blocks.
Row: TypeAlias = tuple[int, int, int, tuple[int, ...]]


class Request(NamedTuple):  # a tuple is made fast, and a trace may have millions
    """The request of one line of a trace.

    Attributes:
        arrival_ns: When it arrives, after the first request of the trace.
        prompt_tokens: Tokens that are there at once.
        output_tokens: Tokens that are generated one by one.
        prefix: Names of the prompt's blocks of :data:`PREFIX_TOKENS` tokens, from its beginning:
            requests whose first names are equal have these blocks in common.
    """

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[int, ...] = ()

    @property
    def total_tokens(self) -> int:
        """Prompt and output together."""
        return self.prompt_tokens + self.output_tokens


class LineError(ValueError):
    """A line that is not a request; the message says why."""


@dataclass(slots=True)
class Reading:
    """What was read of a trace so far.

    Attributes:
        lines: Lines read, with the heading and the bad ones.
        nbytes: About how many bytes that is.
        requests: Requests found.
        late: Requests earlier than one before them; they count as arriving with it.
        bad: Lines that are not requests.
        bad_lines: The first of them: line number and what is wrong.
    """

    lines: int = 0
    nbytes: int = 0
    requests: int = 0
    late: int = 0
    bad: int = 0
    bad_lines: list[tuple[int, str]] = field(default_factory=list)
