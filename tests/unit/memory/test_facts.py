"""A comment that refers to a platform fact refers to one that is written down."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_every_anchor_in_the_code_is_in_the_page():
    page = (ROOT / "docs/platform-facts.md").read_text(encoding="utf-8")
    anchors = set(re.findall(r'<a id="([\w-]+)"></a>', page))
    named = {
        (path.relative_to(ROOT).as_posix(), anchor)
        for path in (ROOT / "vmtool").rglob("*.py")
        for anchor in re.findall(r"platform-facts(?:\.md)?#([\w-]+)", path.read_text("utf-8"))
    }
    assert named
    assert {name for _, name in named} <= anchors, {n for n in named if n[1] not in anchors}
