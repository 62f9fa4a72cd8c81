"""How large the weights of the built-in models are."""

from __future__ import annotations

from typing import Final

#: Bytes of the weights of the built-in models as they are published, in GB (10^9 bytes), from their
#: parameter counts and the element types of their checkpoints; three digits.
_PUBLISHED_GB: Final = """
llama-2-7b 13.5 llama-2-13b 26.0 llama-2-70b 138 llama-3-8b 16.1 llama-3-70b 141 llama-3.1-8b 16.1
llama-3.1-70b 141 llama-3.1-405b 812 llama-3.2-1b 2.47 llama-3.2-3b 6.43 llama-3.3-70b 141
llama-4-scout 217 llama-4-maverick 803 opt-6.7b 13.3 mistral-7b-v0.1 14.5 mistral-7b-v0.3 14.5
mistral-nemo-12b 24.5 mistral-small-24b 47.1 mixtral-8x7b 93.4 mixtral-8x22b 281 qwen2-7b 15.2
qwen2.5-0.5b 0.988 qwen2.5-1.5b 3.09 qwen2.5-3b 6.17 qwen2.5-7b 15.2 qwen2.5-14b 29.5
qwen2.5-32b 65.5 qwen2.5-72b 145 qwen3-0.6b 1.19 qwen3-1.7b 3.44 qwen3-4b 8.04 qwen3-8b 16.4
qwen3-14b 29.5 qwen3-32b 65.5 qwen3-30b-a3b 61.1 qwen3-235b-a22b 470 qwen3-coder-480b-a35b 960
qwen3-next-80b-a3b 163 gemma-2-2b 5.23 gemma-2-9b 18.5 gemma-2-27b 54.5 gemma-3-1b 2.00
gemma-3-4b 8.60 gemma-3-12b 24.4 gemma-3-27b 54.9 gpt-oss-20b 13.8 gpt-oss-120b 65.2 gpt2 0.548
whisper-large-v3 3.09 deepseek-v2-lite 31.4 deepseek-v3 689 deepseek-r1 689 deepseek-v3.2 689
kimi-k2 1030 glm-4-9b 18.8 glm-4.5 717 glm-4.5-air 221 phi-2 5.56 phi-3-mini-4k 7.64 phi-4 29.3
phi-4-mini 7.67 jamba-v0.1 103 lfm2-1.2b 2.34 command-r 70.0 command-r7b 16.1 command-a 222
exaone-4-32b 64.0 olmo-3-7b 14.6 seed-oss-36b 72.3 smollm-1.7b 3.42 smollm3-3b 6.15
granite-3.3-8b 16.3 starcoder2-15b 31.9 yi-34b 68.8 falcon-7b 14.4 falcon-40b 83.7 bloom-7b1 14.1
mpt-7b 13.3 falcon-mamba-7b 14.5 llama-3.3-nemotron-super-49b 99.7 nemotron-3-nano-30b-a3b 63.2
"""


def published_bytes(name: str) -> int | None:
    """Return about how large the published weights of the built-in model *name* are, if known."""
    words = _PUBLISHED_GB.split()
    sizes = dict(zip(words[::2], words[1::2], strict=True))
    return int(float(sizes[name]) * 1e9) if name in sizes else None
