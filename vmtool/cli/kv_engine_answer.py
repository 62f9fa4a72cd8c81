"""What the engine of ``kv-estimate --as`` makes of a question."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vmtool.cli.kv_estimate_request import EstimateRequest
    from vmtool.kv.engines.llamacpp import LlamaCppResult
    from vmtool.kv.engines.sglang import SglangResult
    from vmtool.kv.engines.trtllm import TrtllmResult
    from vmtool.kv.engines.vllm import VllmResult
    from vmtool.kv.estimate import Question


def engine_result(
    request: EstimateRequest, question: Question
) -> VllmResult | SglangResult | LlamaCppResult | TrtllmResult:
    """Return what the engine of ``--as`` makes of *question*."""
    made = _engine_result(request, question)
    budget, geometry = question.budget, question.geometry
    if budget is None or request.options.blocks is not None:
        return made  # the memory does not count
    from vmtool.kv.engines.known_engines import EngineRank

    return replace(made, rank=EngineRank(budget, geometry.tp, geometry.pp, geometry.dcp))


def _engine_result(
    request: EstimateRequest, question: Question
) -> VllmResult | SglangResult | LlamaCppResult | TrtllmResult:
    from vmtool.kv.engines.known_engines import find_engine

    options = request.options
    name, version = find_engine(options.engine or "")
    if name == "vllm":
        from vmtool.kv.engines.vllm import VllmSettings, as_vllm, default_block
        from vmtool.kv.estimate import PREFILL_TOKENS

        settings = VllmSettings(
            max_model_len=question.length,
            block=options.block or default_block(question.geometry),
            in_flight=question.in_flight or PREFILL_TOKENS,
            state_mode=options.state_blocks,
            encoder_tokens=options.batch_tokens,
            draft_tokens=options.draft_tokens,
            kernel_block=options.kernel_block,
            num_blocks=options.blocks,
        )
        return as_vllm(question, settings, version)
    if name == "sglang":
        from vmtool.kv.engines.sglang import SglangSettings, as_sglang, default_page

        slots = options.sequences if options.sequences > 1 else None
        page = options.block or default_page(question.geometry)
        return as_sglang(question, SglangSettings(page, slots))
    if name == "trtllm":
        from vmtool.kv.engines.trtllm import TrtllmSettings, as_trtllm
        from vmtool.kv.estimate import PREFILL_TOKENS

        longest = TrtllmSettings(
            question.length,
            options.block or 32,
            options.draft_tokens,
            options.attention_windows,
            question.in_flight or PREFILL_TOKENS,
        )
        return as_trtllm(question, longest, version)
    from vmtool.kv.engines.llamacpp import as_llamacpp

    return as_llamacpp(
        question,
        unified=options.unified,
        swa_full=options.swa_full,
        flash_attention=options.flash_attention,
        rollback=options.draft_tokens,
        draft=request.draft,
    )
