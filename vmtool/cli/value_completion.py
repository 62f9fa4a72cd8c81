"""What a shell may complete as the value of a parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import click
    from click.shell_completion import CompletionItem


def _method_names() -> Iterable[str]:
    from vmtool.memory.backing_by_name import methods_of

    return ("all", *methods_of("host"), *methods_of("cuda"))


def _model_names() -> Iterable[str]:
    from vmtool.kv.sources import builtin_names

    return builtin_names()


def _format_names() -> Iterable[str]:
    from vmtool.kv.element_formats import FORMATS

    return FORMATS


def _policy_names() -> Iterable[str]:
    from vmtool.kv.packing.policies import POLICIES

    return POLICIES


def _engine_names() -> Iterable[str]:
    from vmtool.kv.engines.known_engines import ENGINES

    return ENGINES


#: What can be completed, by the name of the parameter, and whether it may be a file as well.
VALUES: Final[dict[str, tuple[Callable[[], Iterable[str]], bool]]] = {
    "backing": (lambda: ("host", "cuda", "cuda:0"), False),
    "method": (_method_names, False),
    "methods": (_method_names, False),
    "model": (_model_names, True),
    "dtype": (_format_names, False),
    "dtype_k": (_format_names, False),
    "dtype_v": (_format_names, False),
    "policy": (_policy_names, False),
    "engine": (_engine_names, False),
    "before": (lambda: (), True),
    "after": (lambda: (), True),
    "trace": (lambda: ("synthetic:",), True),
    "files": (lambda: (), True),
}


def completing(
    names: Callable[[], Iterable[str]],
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return the completion of a parameter that takes one of *names*, which are made when needed."""
    return lambda _ctx, _param, incomplete: [n for n in names() if n.startswith(incomplete)]


def complete(_ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return what completes *incomplete*, the value of *param* so far."""
    from click.shell_completion import CompletionItem

    names, may_be_file = VALUES[str(param.name)]
    found = [CompletionItem(name) for name in names() if name.startswith(incomplete)]
    return [CompletionItem(incomplete, type="file")] if may_be_file and not found else found
