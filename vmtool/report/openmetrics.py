"""Figures in the OpenMetrics text format, for a textfile collector.

Format: https://prometheus.io/docs/specs/om/open_metrics_spec/
"""

from __future__ import annotations

from vmtool.errors import printable_lines


class Metrics:
    """Gauges, each family kept together as the format wants."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def add(self, name: str, value: float, /, **labels: object) -> None:
        """Add one sample of the family ``vmtool_NAME``."""
        pairs = ",".join(f'{key}="{_escaped(str(text))}"' for key, text in labels.items())
        self._families.setdefault(f"vmtool_{name}", []).append(f"vmtool_{name}{{{pairs}}} {value}")

    def text(self) -> str:
        """Return the whole exposition."""
        lines = []
        for name, samples in self._families.items():
            lines += [f"# TYPE {name} gauge", *samples]
        return "\n".join([*lines, "# EOF", ""])


def _escaped(text: str) -> str:
    # A line break has an escape in the format; other control characters are spelled out.
    return printable_lines(text).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
