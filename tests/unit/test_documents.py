"""Encoding results over and over leaves nothing behind, so that a soak does not find itself leaking."""

import gc
import json
import sys

from stored_runs import checkpoint, gaussian, method

from vmtool.documents import decode, plain
from vmtool.results.stress import Checkpoint, MethodResult
from vmtool.stress.messages import encode


def test_what_is_encoded_is_decoded_again():
    made = method("fixed", commit=gaussian(1, 5000, 300), release=gaussian(2, 5000, 300))
    assert decode(MethodResult, json.loads(encode("x", made))["value"]) == made
    assert decode(Checkpoint, json.loads(encode("x", checkpoint(3)))["value"]) == checkpoint(3)


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
