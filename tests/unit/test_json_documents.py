"""What is written can be read, and encoding over and over leaves nothing behind in a soak."""

import gc
import json
import sys

import pytest
from stored_runs import checkpoint, gaussian, method

from vmtool import json_documents
from vmtool.errors import InputError
from vmtool.json_documents import decode, plain
from vmtool.results.stress import Checkpoint, MethodResult
from vmtool.stress.messages import encode


def test_what_is_encoded_is_decoded_again():
    made = method("fixed", commit=gaussian(1, 5000, 300), release=gaussian(2, 5000, 300))
    assert decode(MethodResult, json.loads(encode("x", made))["value"]) == made
    assert decode(Checkpoint, json.loads(encode("x", checkpoint(3)))["value"]) == checkpoint(3)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("a\udcffb", "a\\udcffb"),  # a byte of a file's name that is not UTF-8
        ("\x1b[31m\x9b\u202e\r", "\\u001b[31m\\u009b\\u202e\\r"),
        ("\N{GRINNING FACE}\\u001b\n\t", "\N{GRINNING FACE}\\u001b\n\t"),
    ],
)
def test_what_no_document_may_hold_is_written_as_text(text, read):
    assert json_documents.parse("x", json_documents.encode({"label": text})) == {"label": read}


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [1, {"a": "} \\": {"}], "b\\\\": 1.5e3}',
        '{"a": 1, "a": 2}',
        '{"a": {"b": 1, "b": 2}}',
        '{"\\u0061": 1, "a": 2}',
        '{"a": "\\u0022:", "b": 1, "b": 2}',
        '{"a": "\\u001b"}',
        '{"a": "\\ud800"}',
        '{"a": "\x7f"}',
        '{"a": "é"}',
        '{"a": NaN}',
        '{"a": 1e999}',
        "[1]",
        "{",
        "",
        "{}{}",
    ],
)
def test_reading_quickly_is_reading(text):
    def read(how):
        try:
            return how("x", text.encode())
        except InputError as error:
            return str(error)

    assert read(json_documents.parse_quickly) == read(json_documents.parse)


def test_encoding_many_times_takes_no_more_memory_than_a_few_times():
    gc.collect()
    gc.disable()  # as in a worker
    try:
        value = checkpoint(3)
        for _ in range(50):
            plain(value)
        before = sys.getallocatedblocks()
        for _ in range(500):
            plain(value)
        assert sys.getallocatedblocks() - before < 250
    finally:
        gc.enable()
