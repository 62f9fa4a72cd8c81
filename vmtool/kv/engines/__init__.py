"""What inference engines would make of the same memory, and log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.errors import UsageError

if TYPE_CHECKING:
    from vmtool.kv.engines.results import LlamaCppResult, SglangResult, VllmResult
    from vmtool.kv.engines.sglang import SglangSettings
    from vmtool.kv.engines.vllm import VllmSettings
    from vmtool.kv.estimate import Question
    from vmtool.kv.results import Budget

#: The engines that are modelled, with the newest version that is, and the option that sets it.
ENGINES: Final = {"vllm": "0.33", "llama.cpp": "0.5", "sglang": "0.5.23"}
#: The first version of vLLM that logs what the pool holds at ``max_model_len``.
_NEWER_SINCE: Final = (0, 21)
_LLAMACPP_UBATCH: Final = 512


def find_engine(text: str) -> tuple[str, str]:
    """Return the engine and the version that ``--as`` *text* means, such as ``vllm@0.20``.

    Raises:
        UsageError: If there is none, with the closest name.
    """
    name, at, version = text.lower().partition("@")
    if name not in ENGINES:
        from difflib import get_close_matches  # noqa: PLC0415 - only after a mistake

        # Not so close that one engine is taken for another: trtllm is no vllm.
        close = get_close_matches(name, ENGINES, n=1, cutoff=0.85)
        meant = f"did you mean {close[0]}? " if close else ""
        raise UsageError(
            f"unknown engine {name[:40]!r}", hint=f"{meant}use one of {', '.join(ENGINES)}"
        )
    if at and name != "vllm":
        raise UsageError(f"--as {text[:40]}: only versions of vllm are distinguished")
    if at and not all(part.isdecimal() for part in version.split(".")):
        raise UsageError(f"--as {text[:40]!r}: write a version such as vllm@0.33")
    return name, version or ENGINES[name]


def as_vllm(question: Question, settings: VllmSettings, version: str) -> VllmResult:
    """Return what vLLM *version* makes of *question*.

    Raises:
        UsageError: If it could not serve the model so, or there is no budget.
    """
    from vmtool.kv.cost import SequenceCost  # noqa: PLC0415 - each engine is loaded alone
    from vmtool.kv.engines import vllm  # noqa: PLC0415
    from vmtool.kv.engines.results import VllmResult  # noqa: PLC0415
    from vmtool.kv.formats import stored_formats  # noqa: PLC0415

    newer = _version(version) >= _NEWER_SINCE
    if settings.state_mode == "all" and newer:
        raise UsageError(
            f"vLLM {version} has no state mode all any more",
            hint="use --state-blocks align, or ask for an older version, such as --as vllm@0.20",
        )
    budget = _budget(question, "vllm", settings.num_blocks)
    geometry = vllm.served_geometry(question.geometry)
    formats = stored_formats(geometry, question.formats)
    pool = vllm.vllm_pool(SequenceCost.of(geometry, formats), budget, settings)
    plain = None
    if formats != question.formats:
        cost = SequenceCost.of(geometry, question.formats)
        plain = vllm.vllm_pool(cost, budget, settings).tokens_newer
    lines = vllm.log_lines(pool, settings)
    if newer:
        lines = dict(reversed(lines.items()))
    return VllmResult(
        model=question.geometry.name,
        engine_version=version,
        requested_format=question.formats.key.name,
        format_k=formats.key.name,
        budget_bytes=budget,
        max_model_len_tokens=settings.max_model_len,
        in_flight_tokens=settings.in_flight,
        num_blocks=pool.num_blocks,
        block_tokens=pool.block_tokens,
        page_bytes=pool.page_bytes or None,
        groups=pool.groups,
        group_layers=pool.group_layers,
        padding_layers=pool.padding_layers,
        blocks_per_request=pool.blocks_per_request,
        aligned_block_tokens=pool.aligned_block_tokens,
        state_padding_bytes=pool.state_padding_bytes,
        padded_page_bytes=pool.padded_page_bytes,
        tokens_older=pool.tokens_older,
        tokens_newer=pool.tokens_newer,
        plain_tokens=plain,
        concurrency=float(pool.concurrency),
        starts=pool.starts if newer else pool.concurrency >= 1,
        log_lines=lines,
    )


def as_sglang(question: Question, settings: SglangSettings) -> SglangResult:
    """Return what SGLang makes of *question*.

    Raises:
        UsageError: If it could not serve the model so, or there is no budget.
    """
    from vmtool.kv.engines import sglang  # noqa: PLC0415 - each engine is loaded alone
    from vmtool.kv.engines.results import SglangResult  # noqa: PLC0415

    budget = _budget(question, "sglang")
    pool = sglang.sglang_pool(question.cost, question.formats, budget, settings)
    name = question.geometry.name
    return SglangResult(name, question.formats.key.name, budget, pool, sglang.log_lines(pool))


def as_llamacpp(
    question: Question,
    *,
    unified: bool = False,
    swa_full: bool = False,
    flash_attention: bool = True,
    rollback: int = 0,
) -> LlamaCppResult:
    """Return the caches that llama.cpp makes for *question*.

    Raises:
        UsageError: If it could not serve the model so.
    """
    from vmtool.kv.engines import llamacpp  # noqa: PLC0415 - each engine is loaded alone
    from vmtool.kv.engines.results import LlamaCppResult  # noqa: PLC0415

    settings = llamacpp.LlamaCppSettings(
        context=question.length,
        sequences=question.sequences,
        ubatch=question.in_flight or _LLAMACPP_UBATCH,
        unified=unified,
        swa_full=swa_full,
        flash_attention=flash_attention,
        rollback=rollback,
    )
    buffers = llamacpp.llamacpp_buffers(question.geometry, question.formats, settings)
    return LlamaCppResult(
        model=question.geometry.name,
        context_tokens=settings.context,
        total_context_tokens=settings.total_context,
        sequences=settings.sequences,
        ubatch_tokens=settings.ubatch,
        unified=unified,
        swa_full=swa_full,
        total_bytes=sum(buffer.nbytes for buffer in buffers),
        budget_bytes=None if question.budget is None else question.budget.kv_bytes,
        buffers=tuple(buffers),
        log_lines=tuple(llamacpp.log_line(buffer, settings) for buffer in buffers),
    )


def _budget(question: Question, engine: str, blocks: int | None = None) -> int:
    budget: Budget | None = question.budget
    if budget is None:
        if blocks is not None:
            return 0
        raise UsageError(
            f"--as {engine} needs --budget", hint="give the memory of one rank, such as 20GiB"
        )
    return budget.kv_bytes


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
