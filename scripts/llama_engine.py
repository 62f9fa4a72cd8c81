#!/usr/bin/env python3
"""Run a small real engine to inspect: llama.cpp decodes tokens with a model that this script makes.

    llama_engine.py FOLDER [--model FILE] [--context N] [--layers N] [--width N] [--mlock] [--leak N]

FOLDER holds llama.cpp's libraries, such as ``bins/linux-x64`` of npm's ``@node-llama-cpp/linux-x64``
(tried with 3.22.1, which is llama.cpp v0.5.0). The model has the architecture of Llama with weights
that mean nothing; it is written to FILE first, if that is not there. When the first token is decoded,
one line of JSON says how large model and KV cache are; then a token is decoded every 20 ms until stdin
ends. ``--mlock`` asks for the model to be locked into memory, and ``--leak N`` makes another context
for every N tokens and never frees one, which is what an engine does that forgets its sessions.
"""

import argparse
import ctypes
import json
import os
import select
import struct
import sys
from ctypes import c_int32, c_void_p
from pathlib import Path

from _llama import AUTOMATIC, F32, MAP_AND_LOCK, GgufFile, Library

_VOCABULARY = 4096
_HEADS = 8


class _Batch(ctypes.Structure):
    _fields_ = (("n_tokens", c_int32), *((name, c_void_p) for name in "tepnsl"))


def write_model(path: Path, layers: int, width: int, context: int) -> None:
    """Write a model of the architecture of Llama."""
    numbers = {
        "block_count": layers,
        "embedding_length": width,
        "feed_forward_length": 2 * width,
        "context_length": context,
        "vocab_size": _VOCABULARY,
        "attention.head_count": _HEADS,
        "attention.head_count_kv": _HEADS,
    }
    keys = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "none",
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        **{f"llama.{name}": value for name, value in numbers.items()},
    }
    square, up, down = (width, width), (width, 2 * width), (2 * width, width)
    block = {"attn_norm": (width,), "attn_q": square, "attn_k": square, "attn_v": square}
    block |= {"attn_output": square, "ffn_norm": (width,), "ffn_gate": up, "ffn_down": down}
    tensors = {"token_embd": (width, _VOCABULARY), "output_norm": (width,)}
    for index in range(layers):
        tensors |= {f"blk.{index}.{name}": of for name, of in {**block, "ffn_up": up}.items()}
    shapes = {f"{name}.weight": shape for name, shape in tensors.items()}

    def contents(name: str) -> bytes:
        shape = shapes[name]
        values = shape[0] * (shape[1] if len(shape) > 1 else 1)
        row = (
            [1.0] * width
            if "norm" in name
            else [(i * 7919 % 201 - 100) / 5000 for i in range(width)]
        )
        return struct.pack(f"<{width}f", *row) * (values // width)

    GgufFile(keys, shapes, F32).write(path, contents)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=Path, default=Path("model.gguf"))
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--mlock", action="store_true")
    parser.add_argument("--leak", type=int, default=0)
    arguments = parser.parse_args()
    if not arguments.model.exists():
        write_model(arguments.model, arguments.layers, arguments.width, arguments.context)

    engine = Library(
        arguments.folder,
        lambda level, words: level >= 3 and sys.stderr.write(words.decode("utf-8", "replace")),
    )
    llama = engine.calls
    llama.llama_get_memory.restype = c_void_p
    llama.llama_batch_get_one.restype = _Batch
    llama.llama_decode.argtypes = [c_void_p, _Batch]
    llama.llama_set_n_threads.argtypes = [c_void_p, c_int32, c_int32]
    llama.llama_get_memory.argtypes = [c_void_p]
    llama.llama_memory_clear.argtypes = [c_void_p, ctypes.c_bool]
    model = engine.load(arguments.model, MAP_AND_LOCK if arguments.mlock else AUTOMATIC)

    def new_context() -> int:
        made = engine.context(model, n_ctx=arguments.context) if model else None
        if not made:
            sys.exit("llama.cpp could not make a context")
        llama.llama_set_n_threads(made, 1, 1)
        return made

    context = new_context()
    token = (c_int32 * 1)()
    decoded = 0
    while not decoded or not select.select([sys.stdin], [], [], 0.02)[0]:
        token[0] = decoded % _VOCABULARY
        if arguments.leak and decoded % arguments.leak == arguments.leak - 1:
            context = new_context()
        elif decoded % arguments.context == arguments.context - 1:
            llama.llama_memory_clear(llama.llama_get_memory(context), True)
        if llama.llama_decode(context, llama.llama_batch_get_one(token, 1)):
            sys.exit("llama.cpp could not decode a token")
        if not decoded:
            # K and V of each layer, in halves of a float.
            cache = arguments.layers * 2 * arguments.context * arguments.width * 2
            facts = {"pid": os.getpid(), "model": arguments.model.stat().st_size, "cache": cache}
            print(json.dumps(facts), flush=True)
        decoded += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
