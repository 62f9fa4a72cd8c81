"""Request traces: every format by its content, bad lines with their numbers, hostile files."""

import gzip
import json
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.errors import InputError
from vmtool.kv.traces.request_formats import Request
from vmtool.kv.traces.trace import MAX_LINE_BYTES, Trace

# The first lines of AzureLLMInferenceTrace_code.csv (AzurePublicDataset, CC-BY).
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:04.0781490,110,27
"""
# Shortened lines of FAST25-release/traces/conversation_trace.jsonl (Mooncake, Apache-2.0).
MOONCAKE = """{"timestamp": 0, "input_length": 2290, "output_length": 316, "hash_ids": [0, 42, 43, 44, 45]}
{"timestamp": 3000, "input_length": 600, "output_length": 3, "hash_ids": [0, 46]}
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.5,ChatGPT,1087,0,1087,Conversation log
"""


@pytest.fixture
def trace(tmp_path):
    def make(text, **options):
        path = tmp_path / "trace"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return Trace(str(path), **options)

    return make


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_azure(trace, end):
    found = trace(AZURE.replace("\n", end))
    assert found.format == "azure"
    assert list(found) == [
        Request(0, 4808, 10),
        Request(52_000_000, 3180, 8),
        Request(98_189_000, 110, 27),
    ]
    assert list(found) == list(found)  # it begins anew


def test_azure_of_2024_has_a_time_zone(trace):
    found = trace(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01+00:00,2399,6\n"
    )
    assert [request.arrival_ns for request in found] == [0, 990_070_000]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (  # the set of 2024, and columns that another tool added or moved
            (
                "GeneratedTokens,region,TIMESTAMP,ContextTokens\n"
                "5,eu,2024-05-10 00:00:00.5+00:00,2162\n6,us,2024-05-10 00:00:02.75+00:00,2399\n"
            ),
            "azure",
        ),
        (  # BurstGPT 2.0 has two more columns
            (
                "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
                'Log Type\n5,17,1.5,"ChatGPT",2162,5,2167,API log\n'
                "7.25,,,GPT-4,2399,6,2405,Conversation log\n"
            ),
            "burstgpt",
        ),
    ],
)
def test_columns_are_found_by_their_names(trace, text, name):
    found = trace(text)
    assert found.format == name
    assert list(found) == [Request(0, 2162, 5), Request(2_250_000_000, 2399, 6)]


def test_mooncake_has_milliseconds_and_prefixes(trace):
    found = trace(MOONCAKE)
    assert found.format == "mooncake"
    assert list(found) == [
        Request(0, 2290, 316, (0, 42, 43, 44, 45)),
        Request(3_000_000_000, 600, 3, (0, 46)),
    ]


def test_burstgpt_has_seconds(trace):
    found = trace("\ufeff" + BURSTGPT)
    assert found.format == "burstgpt"
    assert list(found) == [Request(0, 472, 18), Request(40_500_000_000, 1087, 0)]


@pytest.mark.parametrize(
    ("prompt", "output"),
    [
        ("prompt_len", "output_len"),
        ("input_tokens", "output_tokens"),
        ("prompt_tokens", "completion_tokens"),
    ],
)
def test_lengths_without_times_come_at_once_or_at_a_rate(trace, prompt, output):
    line = json.dumps({prompt: 7, output: 3, "prompt": "hi"}) + "\n"
    assert list(trace(line * 3)) == [Request(0, 7, 3)] * 3
    drawn = [request.arrival_ns for request in trace(line * 2000, rate=10.0, seed=1)]
    assert drawn == sorted(drawn)
    assert drawn[-1] == pytest.approx(200e9, rel=0.1)
    assert drawn == [request.arrival_ns for request in trace(line * 2000, rate=10.0, seed=1)]


def test_seconds_of_json_are_exact(trace):
    lines = [{"arrival_time": at, "prompt_len": 1, "output_len": 1} for at in (0.1, 1000.000000001)]
    found = trace("\n".join(map(json.dumps, lines)))
    assert [request.arrival_ns for request in found] == [0, 999_900_000_001]


@pytest.mark.parametrize("unit", [1, 1000])
def test_times_may_count_from_1970(trace, unit):
    key = "timestamp" if unit == 1 else "timestamp_ms"
    at = [1_700_000_000 * unit, 1_700_000_002 * unit]
    lines = [{key: each, "prompt_len": 1, "output_len": 1} for each in at]
    found = trace("\n".join(map(json.dumps, lines)))
    assert [request.arrival_ns for request in found] == [0, 2_000_000_000]
    assert not found.reading.bad


def test_an_arrival_that_goes_back_counts_with_the_one_before(trace):
    later = "".join(f"{at},GPT-4,1,1,2,API log\n" for at in range(50, 147))
    text = BURSTGPT + "44,GPT-4,1,1,2,API log\n" + later
    found = trace(text)
    arrivals = [request.arrival_ns for request in found]
    assert arrivals[:4] == [0, 40_500_000_000, 40_500_000_000, 45_000_000_000]
    assert (found.reading.late, found.reading.requests) == (1, 100)
    assert next(iter(trace(text, sort=True))).prompt_tokens == 472
    found = trace(text, sort=True)
    assert [request.arrival_ns for request in found][:3] == [0, 39 * 10**9, 40_500_000_000]
    assert not found.reading.late


def test_one_wrong_time_that_makes_most_requests_late_is_refused(trace):
    line = '{{"prompt_len": 1, "output_len": 1, "arrival_time": {}}}'
    found = trace("\n".join(line.format(at if at != 2 else 86400) for at in range(1000)))
    with pytest.raises(InputError, match="997 of 1,000 requests are earlier") as caught:
        list(found)
    assert "--sort" in caught.value.hint


def test_keys_given_twice_are_bad_lines(trace):
    good = '{"prompt_len": 1, "output_len": 1}\n'
    found = trace(good + '{"prompt_len": 1, "output_len": 1, "prompt_len": 9}\n')
    assert len(list(found)) == 1
    assert found.reading.bad_lines == [(2, "has the key 'prompt_len' twice")]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_gzip_and_other_encodings_are_read(trace, encoding):
    for content in (AZURE.encode(encoding), gzip.compress(AZURE.encode(encoding))):
        found = trace(content)
        assert [request.prompt_tokens for request in found] == [4808, 3180, 110]


def test_progress_is_the_part_that_was_read(trace):
    found = trace(AZURE)
    assert found.progress() == 0
    assert [found.progress() for _ in found][1:] == sorted(found.progress() for _ in found)[1:]
    assert found.progress() == 1
    assert trace(gzip.compress(AZURE.encode())).progress() is None
    made = Trace("synthetic:requests=4")
    assert [made.progress() for _ in made] == [0.25, 0.5, 0.75, 1]


def test_bad_lines_are_counted_and_the_first_are_reported(trace):
    bad = ["x,y,z", "2023-11-16 18:17:05,1", "2023-11-16 18:17:05,-1,5", "2023-13-16 18:17:05,1,5"]
    bad += ["2023-11-16 18:17:05,0,0", "2023-11-16 18:17:05,1e9,5", "\0\0", '"']
    found = trace(AZURE + "\n".join(bad))
    assert len(list(found)) == 3
    assert found.reading.bad == len(bad)
    assert [line for line, _ in found.reading.bad_lines] == [5, 6, 7, 8, 9]
    assert "has 2 columns" in found.reading.bad_lines[1][1]


def test_too_many_bad_lines_are_an_error_that_names_the_line(trace):
    found = trace(AZURE + "a\nb\nc\n", max_bad_lines=2)
    with pytest.raises(InputError, match=r"trace: line 7: has 1 columns"):
        list(found)
    assert len(list(trace(AZURE + "a\nb\nc\n", max_bad_lines=3))) == 3


@pytest.mark.parametrize(
    "value",
    [
        *("1e400", "-1", "NaN", "Infinity", '"x"', "null", "true", "[]", "1.5", "67108865"),
        *("9" * 5000, "[" * 5000, "1" * 400),
    ],
)
def test_hostile_values_are_bad_lines(trace, value):
    good = '{"prompt_len": 1, "output_len": 1, "arrival_time": 0}\n'
    found = trace(good + f'{{"prompt_len": {value}, "output_len": 1, "arrival_time": 0}}\n')
    assert len(list(found)) == found.reading.bad == 1
    assert len(found.reading.bad_lines[0][1]) < 200


@pytest.mark.parametrize("value", ["1e400", "-1", "NaN", '"1e999999999"', "null", "true", "1e10"])
def test_hostile_times_are_bad_lines(trace, value):
    good = '{"prompt_len": 1, "output_len": 1, "arrival_time": 0}\n'
    found = trace(good + f'{{"prompt_len": 1, "output_len": 1, "arrival_time": {value}}}\n')
    assert len(list(found)) == found.reading.bad == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"\x7fELF\0\0\0\n", "line 1: is binary"),
        (b"a,\xff\xfe\n", "line 1: is not UTF-8"),
        (b"PK\x03\x04\xff\xff", "line 1: is a ZIP archive"),
        (gzip.compress(AZURE.encode(), mtime=0)[:30], "cannot be read: its gzip data"),
        (b"a,b,c\n1,2,3\n", "no supported trace has"),
        (b"[{}]\n", "one JSON array"),
        (b"{\n", "line 1: is not JSON"),
        (b'{"messages": []}\n', "no key for a length of the prompt"),
        (b"x" * (MAX_LINE_BYTES + 1), "line 1: is longer than"),
    ],
)
def test_what_is_no_trace_is_refused_at_once(trace, content, words):
    with pytest.raises(InputError, match=words):
        trace(content)


def test_a_trace_without_requests_is_an_error(trace):
    with pytest.raises(InputError, match="has no requests in 1 lines"):
        list(trace("TIMESTAMP,ContextTokens,GeneratedTokens\n"))
    with pytest.raises(InputError, match=r"in 2 lines; line 2 has 1 columns instead of 3"):
        list(trace("TIMESTAMP,ContextTokens,GeneratedTokens\nx\n"))


def test_a_giant_line_is_one_bad_line_and_never_in_memory(trace):
    found = trace(
        AZURE.encode()
        + b"9" * (3 * MAX_LINE_BYTES)
        + b"\n"
        + AZURE.replace("2023", "2024").encode()
    )
    assert len(list(found)) == 6
    assert found.reading.bad == 2  # and the second heading


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this platform has no FIFOs")
def test_a_pipe_is_read_once_and_can_be_replayed_again(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=(AZURE,))
    writer.start()
    found = Trace(str(path))
    writer.join()
    assert len(list(found)) == len(list(found)) == 3


def test_a_limit_stops_reading(trace):
    found = trace(AZURE, limit=2)
    assert len(list(found)) == 2
    assert found.reading.lines == 3


@given(st.binary(max_size=300))
def test_any_bytes_are_a_trace_or_an_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any"
    for head in (b"", AZURE.encode(), MOONCAKE.encode(), BURSTGPT.encode()):
        path.write_bytes(head + content)
        try:
            for request in Trace(str(path)):
                assert request.total_tokens > 0
                assert request.arrival_ns >= 0
        except InputError:
            pass
