#!/usr/bin/env python3
"""A small real engine to look at: llama.cpp decodes tokens with a model that this script makes.

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
from ctypes import c_char_p, c_int32, c_uint8, c_void_p
from pathlib import Path

_VOCABULARY = 4096
_HEADS = 8
_F32, _ALIGN = 0, 32
# struct llama_context_params begins with n_ctx; struct llama_model_params has load_mode at this
# offset: -1 leaves it to llama.cpp, which maps the file, and 3 is mmap and mlock.
_LOAD_MODE = 24
_AUTOMATIC, _MAP_AND_LOCK = -1, 3


class _Parameters(ctypes.Structure):
    """Parameters of any kind. Both are passed on the stack, where what is too much does no harm."""

    _fields_ = (("bytes", c_uint8 * 1024),)


class _Batch(ctypes.Structure):
    _fields_ = (("n_tokens", c_int32), *((name, c_void_p) for name in "tepnsl"))


def write_model(path: Path, layers: int, width: int, context: int) -> None:
    """Write a GGUF file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    def key(name: str, kind: int, value: bytes) -> bytes:
        return text(name) + struct.pack("<I", kind) + value

    numbers = {
        "block_count": layers,
        "embedding_length": width,
        "feed_forward_length": 2 * width,
        "context_length": context,
        "vocab_size": _VOCABULARY,
        "attention.head_count": _HEADS,
        "attention.head_count_kv": _HEADS,
    }
    keys = [
        key("general.architecture", 8, text("llama")),
        key("tokenizer.ggml.model", 8, text("none")),
        key("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5)),
        *(key(f"llama.{name}", 4, struct.pack("<I", value)) for name, value in numbers.items()),
    ]
    square, up, down = (width, width), (width, 2 * width), (2 * width, width)
    block = {"attn_norm": (width,), "attn_q": square, "attn_k": square, "attn_v": square}
    block |= {"attn_output": square, "ffn_norm": (width,), "ffn_gate": up, "ffn_down": down}
    tensors = {"token_embd": (width, _VOCABULARY), "output_norm": (width,)}
    for index in range(layers):
        tensors |= {f"blk.{index}.{name}": of for name, of in {**block, "ffn_up": up}.items()}
    header, at, contents = b"", 0, []
    for name, shape in tensors.items():
        values = shape[0] * (shape[1] if len(shape) > 1 else 1)
        header += text(f"{name}.weight") + struct.pack("<I", len(shape))
        header += struct.pack(f"<{len(shape)}QIQ", *shape, _F32, at)
        row = (
            [1.0] * width
            if "norm" in name
            else [(i * 7919 % 201 - 100) / 5000 for i in range(width)]
        )
        contents.append(struct.pack(f"<{width}f", *row) * (values // width))
        at += -(-4 * values // _ALIGN) * _ALIGN
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys) + header
    with path.open("wb") as file:
        for part in (head, *contents):
            file.write(part + b"\0" * (-len(part) % _ALIGN))


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

    folder = arguments.folder
    llama = ctypes.CDLL(str(next(folder.glob("libllama.*so"))))
    ggml = ctypes.CDLL(str(next(folder.glob("libggml.*so"))))
    quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, c_char_p, c_void_p)(
        lambda level, words, _: level >= 3 and sys.stderr.write(words.decode("utf-8", "replace"))
    )
    llama.llama_log_set(quiet, None)
    ggml.ggml_backend_load_all_from_path(str(folder).encode())
    llama.llama_backend_init()
    for name in ("llama_model_default_params", "llama_context_default_params"):
        getattr(llama, name).restype = _Parameters
    for name in ("llama_model_load_from_file", "llama_init_from_model", "llama_get_memory"):
        getattr(llama, name).restype = c_void_p
    llama.llama_model_load_from_file.argtypes = [c_char_p, _Parameters]
    llama.llama_init_from_model.argtypes = [c_void_p, _Parameters]
    llama.llama_batch_get_one.restype = _Batch
    llama.llama_decode.argtypes = [c_void_p, _Batch]
    llama.llama_set_n_threads.argtypes = [c_void_p, c_int32, c_int32]
    llama.llama_get_memory.argtypes = [c_void_p]
    llama.llama_memory_clear.argtypes = [c_void_p, ctypes.c_bool]

    loading = llama.llama_model_default_params()
    if arguments.mlock:
        if struct.unpack_from("<i", loading.bytes, _LOAD_MODE)[0] != _AUTOMATIC:
            sys.exit("this llama.cpp keeps its load mode elsewhere")
        struct.pack_into("<i", loading.bytes, _LOAD_MODE, _MAP_AND_LOCK)
    model = llama.llama_model_load_from_file(str(arguments.model).encode(), loading)
    settings = llama.llama_context_default_params()
    struct.pack_into("<I", settings.bytes, 0, arguments.context)

    def new_context() -> int:
        made = llama.llama_init_from_model(model, settings) if model else None
        if not made:
            sys.exit("llama.cpp could not make a context")
        llama.llama_set_n_threads(made, 1, 1)
        return int(made)

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
