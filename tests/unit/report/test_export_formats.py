"""The cells of every CSV table."""

import csv
import io
from pathlib import Path

import vmtool
from vmtool.report.export_formats import csv_table


def test_no_text_is_a_formula_and_numbers_stay():
    cells = ["=A1", "+1", "-cmd", "@x", "a=b", "", None, -1, -1.5]
    (row,) = csv.reader(io.StringIO(csv_table((), [cells]).removeprefix("\n")))
    assert row == ["'=A1", "'+1", "'-cmd", "'@x", "a=b", "", "", "-1", "-1.5"]


def test_every_table_is_written_by_that_rule():
    files = Path(vmtool.__file__).parent.rglob("*.py")
    writers = [path.stem for path in files if "csv.writer" in path.read_text(encoding="utf-8")]
    assert writers == ["export_formats"]
