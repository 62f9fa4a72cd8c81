"""Synthetic traces."""

import pytest

from vmtool.errors import UsageError
from vmtool.kv.traces.trace import Trace


def test_synthetic_lengths_have_their_median_and_arrivals_their_rate():
    found = list(Trace("synthetic:requests=4001,rate=5,prompt=1000,output=100,spread=0.5", seed=3))
    prompts = sorted(request.prompt_tokens for request in found)
    assert prompts[2000] == pytest.approx(1000, rel=0.05)
    assert sorted(request.output_tokens for request in found)[2000] == pytest.approx(100, rel=0.05)
    assert found[-1].arrival_ns == pytest.approx(800e9, rel=0.1)
    again = Trace("synthetic:requests=4001,rate=5,prompt=1000,output=100,spread=0.5", seed=3)
    assert list(again) == found
    other = Trace("synthetic:requests=4001,rate=5,prompt=1000,output=100,spread=0.5", seed=4)
    assert list(other) != found


def test_synthetic_prefixes_are_of_few_kinds_and_no_longer_than_the_prompt():
    found = list(Trace("synthetic:requests=300,prefixes=3,prefix=2048", seed=1))
    assert {request.prefix[0] for request in found if request.prefix} == {0, 4, 8}
    assert all(len(request.prefix) <= min(4, request.prompt_tokens // 512) for request in found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("synthetic:requsts=5", "did you mean requests"),
        ("synthetic:rate=nan", "it must be from"),
        ("synthetic:requests=0", "it must be from"),
        ("synthetic:prompt=-1", "prompt"),
        ("synthetic:rate=fast", "rate"),
    ],
)
def test_wrong_synthetic_settings_are_wrong_usage(text, words):
    with pytest.raises(UsageError) as caught:
        Trace(text)
    assert words in f"{caught.value} {caught.value.hint}"
