"""`make demo` in small: six models, a table, a page, and where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenmix import demo


def test_demo_prints_a_table_and_says_where_the_report_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "EXAMPLES", 4)
    demo.main(["--out", str(tmp_path), "--steps", "1", "--jobs", "1"])
    text = "".join(capsys.readouterr().out.split())
    for name in ("Transformer", "Synthesizer(R)", "Synthesizer(D)", "Synthesizer(R+V)", "gMLPencoder", "Remixer"):
        assert name in text
    assert "failed" not in text
    assert str(tmp_path / "report.html") in text
    assert (tmp_path / "report.html").exists()
