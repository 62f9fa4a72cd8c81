"""What the options of ``vmtool kv-estimate`` mean: a model, memory, a question, and an engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from vmtool.cli.kv_compare_axes import read_granule
from vmtool.cli.kv_estimate_options import EstimateOptions, check_options, read_count, read_stages
from vmtool.cli.kv_model_and_budget import (
    GIVEN,
    ChosenMemory,
    ModelOptions,
    check_ranks,
    load_model,
    own_weights,
    ranks_of_heads,
    read_memory,
    read_weights,
)
from vmtool.errors import UsageError
from vmtool.units import parse_percent, parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vmtool.kv.element_formats import Formats
    from vmtool.kv.estimate import Question
    from vmtool.kv.estimate_result import Budget
    from vmtool.kv.geometry import ModelGeometry
    from vmtool.report.kv_estimate_engines import EngineResult


#: Granules that are always shown beside the host's page: of Windows and some arm64, and of CUDA.
_KNOWN_GRANULES: Final = (64 << 10, 2 << 20)
#: What vLLM leaves of a device by default: 1 - ``gpu_memory_utilization``.
_VLLM_OVERHEAD: Final = Fraction(8, 100)
#: What TensorRT-LLM leaves of what is free: 1 - ``free_gpu_memory_fraction``.
_TRTLLM_OVERHEAD: Final = Fraction(1, 10)


@dataclass(frozen=True, slots=True)
class EstimateRequest:
    """The options, read and checked.

    Attributes:
        options: As click has them.
        model: The model, not yet divided among ranks.
        memory: What ``--budget`` names, or ``None``.
        waste_threshold: A part of what is committed.
        stages: The layers of each stage, or ``None`` to divide them evenly.
        draft: The model of ``--draft-model``, or ``None``.
        as_device: Whether every budget is taken as a device's memory, as one of a comparison is.
    """

    options: EstimateOptions
    model: ModelGeometry
    memory: ChosenMemory | None
    waste_threshold: Fraction
    stages: tuple[int, ...] | None
    draft: ModelGeometry | None = None
    as_device: bool = False

    @property
    def keeps_only_cache(self) -> bool:
        """Whether the budget is the memory of the cache, which is what engines log."""
        memory, options = self.memory, self.options
        return (
            memory is not None
            and options.weights is None
            and options.engine is not None
            and not (memory.is_device or self.as_device)
        )

    @property
    def lacks_weights(self) -> bool:
        """Whether no weights are subtracted from the budget although none was asked for."""
        if self.memory is None or self.options.weights == "none":
            return False
        budget = self.budget()
        return budget is not None and not budget.weights_bytes

    @property
    def lacking(self) -> str:
        """Why that is, and what to do."""
        if self.keeps_only_cache:
            return (
                "no weights are subtracted: with --as, the budget is the memory of the cache; use "
                "--weights auto to subtract them"
            )
        return (
            "no weights are subtracted from the budget: their size is not known; give it with "
            "--weights"
        )

    def with_alike(self, budgets: Sequence[str]) -> EstimateRequest:
        """Return the request with all *budgets* of a comparison treated alike.

        If one is a device's memory, from which an engine takes the weights and its own part, so are
        the others.
        """
        if self.options.engine is None:
            return self
        return replace(self, as_device=any(read_memory(text).is_device for text in budgets))

    @property
    def tp(self) -> int:
        """Ranks among which the heads are divided: as given, or as many as there are devices."""
        count = None if self.memory is None else self.memory.count
        return ranks_of_heads(self.options.tp, self.pp, count)

    @property
    def pp(self) -> int:
        """Stages into which the layers are divided."""
        if self.stages is not None:
            return len(self.stages)
        return self.options.pp or 1

    def budget(self) -> Budget | None:
        """Return the budget of one rank, or ``None`` if none was given.

        Raises:
            UsageError: If the devices are not as many as the ranks, or a size is not understood.
        """
        from vmtool.kv.estimate_result import Budget

        options, memory = self.options, self.memory
        if memory is None:
            return None
        ranks = self.tp * self.pp
        check_ranks(self.tp, self.pp, memory.count)
        if self.keeps_only_cache:
            nbytes, origin = 0, ""  # what engines log is the memory of their cache
        elif options.weights in (None, "auto"):
            named = options.model or options.hub
            nbytes, origin = own_weights(None if options.overrides else named)
            if origin and options.draft_model is not None:
                drafts, known = own_weights(options.draft_model)
                nbytes += drafts
                origin += "" if known else ", without the draft model's"
        else:
            nbytes, origin = read_weights(options.weights)
        reserve = options.reserve + self._overhead(memory, -(-nbytes // ranks))
        return Budget(memory.total_bytes, memory.origin, -(-nbytes // ranks), reserve, origin)

    def _overhead(self, memory: ChosenMemory, weights: int) -> int:
        text = self.options.overhead
        if text is None:
            is_whole = memory.is_whole or (self.as_device and memory.origin == GIVEN)
            if is_whole and self.options.engine_name == "vllm":
                return int(memory.total_bytes * _VLLM_OVERHEAD)
            if is_whole and self.options.engine_name == "trtllm":
                return max(int((memory.total_bytes - weights) * _TRTLLM_OVERHEAD), 0)
            return 0
        if text.endswith("%"):
            try:
                part = parse_percent(text)
            except ValueError as error:
                raise UsageError(f"--overhead: {error}") from None
            if part > 1:
                raise UsageError(f"--overhead {text}: it must be at most 100%")
            return int(memory.total_bytes * part)
        try:
            return parse_size(text, exact=False)
        except ValueError as error:
            raise UsageError(f"--overhead: {error}") from None

    def rank(self, formats: Formats, context: int | None) -> ModelGeometry:
        """Return the fullest rank with sequences of *context* tokens; ``None`` is the model's own.

        Raises:
            UsageError: If the model cannot be divided so.
        """
        from vmtool.kv.estimate import DEFAULT_CONTEXT, fullest_rank

        return fullest_rank(
            self.model,
            formats,
            context or self.model.context_tokens or DEFAULT_CONTEXT,
            tp=self.tp,
            pp=self.pp,
            dcp=self.options.dcp,
            stages=self.stages,
            in_flight=self.options.in_flight or 0,
        )

    def question(self) -> Question:
        """Return the question.

        Raises:
            UsageError: If the model cannot be divided so, or a format is unknown.
        """
        from vmtool.kv.element_formats import CONVOLUTIONS, choose_formats, find_format
        from vmtool.kv.estimate import Question, why_format
        from vmtool.kv.estimate_result import FormatOrigin

        options, model = self.options, self.model
        key, value = options.dtype_k or options.dtype, options.dtype_v or options.dtype
        # llama.cpp reads GGUF files, which do not say it, and keeps f16 by default.
        as_llamacpp = options.engine_name == "llama.cpp"
        cache_dtype = None if as_llamacpp else model.cache_dtype
        origin = why_format(model, key or value, cache_dtype)
        if as_llamacpp:
            origin = FormatOrigin.GIVEN if key or value else FormatOrigin.ENGINE
            key, value = key or "fp16", value or "fp16"
        formats = choose_formats(model.dtype, key=key, value=value, cache_dtype=cache_dtype)
        if options.state_dtype is not None:
            if not any(s.name not in CONVOLUTIONS for layer in model.layers for s in layer.states):
                raise UsageError(
                    f"--state-dtype has no effect: {model.name} keeps no recurrent state",
                    hint="leave it out",
                )
            formats = replace(formats, recurrent=find_format(options.state_dtype))
        divided = (self.tp, self.pp, options.dcp) != (1, 1, 1)
        granules = options.granules or _KNOWN_GRANULES[-1:]
        return Question(
            geometry=self.rank(formats, options.context) if divided else model,
            formats=formats,
            format_origin=origin,
            budget=self.budget(),
            granules=tuple(sorted({_host_page(), *_KNOWN_GRANULES, *granules})),
            granule=granules[0],
            policy=options.policy,
            block=options.block_tokens,
            context=options.context,
            sequences=options.sequences,
            in_flight=options.in_flight or 0,
            waste_threshold=self.waste_threshold,
            whole=model.shard(tp=self.tp, dcp=options.dcp) if divided else None,
        )

    def changed(self, labels: Mapping[str, str]) -> EstimateRequest:
        """Return the request with the *labels* of a comparison in place of the options.

        Raises:
            UsageError: If a value is not understood.
        """
        options = self.options
        for axis, text in labels.items():
            match axis:
                case "granule":
                    options = replace(options, granules=(read_granule(text), *options.granules))
                case "dtype":
                    options = replace(options, dtype=text, dtype_k=None, dtype_v=None)
                case "tp":
                    options = replace(options, tp=read_count(axis, text))
                case "pp":
                    options = replace(options, pp=read_count(axis, text))
                case "context":
                    options = replace(options, context=read_count(axis, text))
                case "sequences":
                    options = replace(options, sequences=read_count(axis, text))
                case "policy":
                    options = replace(options, policy=text)
                case "budget":
                    options = replace(options, budget=text)
                case _:
                    options = replace(options, model=text, hub=None)
        result = replace(self, options=options)
        if "model" in labels:
            result = replace(result, model=_with_draft(load_model(options), options, self.draft))
        if "budget" in labels:
            result = replace(result, memory=read_memory(labels["budget"]))
        return result


def read_request(options: EstimateOptions) -> EstimateRequest:
    """Return the request of *options*.

    Raises:
        UsageError: If they contradict each other or are out of range.
        InputError: If the model's file is not understood.
        UnavailableError: If the budget names something that this machine does not have.
    """
    check_options(options)
    first = options
    if options.model is None and options.hub is None:
        first = replace(options, model=_first_compared(options.compare))
    draft = None if options.draft_model is None else load_model(ModelOptions(options.draft_model))
    return EstimateRequest(
        options,
        _with_draft(load_model(first), options, draft),
        None if options.budget is None else read_memory(options.budget),
        _percent(options.waste),
        read_stages(options.pp_layers),
        draft,
    )


def _with_draft(
    model: ModelGeometry, options: EstimateOptions, draft: ModelGeometry | None
) -> ModelGeometry:
    """Return *model* with the layers that predict draft tokens, if there are any."""
    if draft is not None:
        return model.with_draft(draft)
    if not options.draft_tokens:
        return model
    return model.with_draft()


def _first_compared(axes: tuple[str, ...]) -> str | None:
    """Return the first model that ``--compare model=A,B`` names."""
    for text in axes:
        axis, _, names = text.partition("=")
        if axis == "model":
            return names.partition(",")[0].strip()
    return None


def _percent(text: str) -> Fraction:
    try:
        part = parse_percent(text)
    except ValueError as error:
        raise UsageError(f"--waste: {error}") from None
    # Below this the search for the length would follow more granules than anyone waits for.
    if not 1 <= part * 1000 < 1000:
        raise UsageError(f"--waste {text!r}: it must be from 0.1% to below 100%")
    return part


def _host_page() -> int:
    import mmap

    return mmap.PAGESIZE


def engine_result(request: EstimateRequest, question: Question) -> EngineResult:
    """Return what the engine of ``--as`` makes of *question*."""
    made = _engine_result(request, question)
    budget, geometry = question.budget, question.geometry
    if budget is None or request.options.blocks is not None:
        return made  # the memory does not count
    from vmtool.kv.engines.known_engines import EngineRank

    return replace(made, rank=EngineRank(budget, geometry.tp, geometry.pp, geometry.dcp))


def _engine_result(request: EstimateRequest, question: Question) -> EngineResult:
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
