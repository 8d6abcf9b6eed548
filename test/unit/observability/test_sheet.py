"""Counters and histograms that several writers share."""

from __future__ import annotations

from pathlib import Path

from mysglang.srt.observability.sheet import Counter, Histogram, Layout, Sheet, cumulative

COUNT = Counter("count_total", "")
SIZES = Histogram("sizes", "", (1.0, 4.0))
LAYOUT = Layout((COUNT, SIZES))


def test_rows_of_all_writers_are_added_up(tmp_path: Path) -> None:
    path = tmp_path / "sheet"
    sheets = [Sheet.at(path, LAYOUT, 3, row) for row in range(3)]
    path.unlink()
    for row, sheet in enumerate(sheets):
        sheet.add(COUNT, 10**row)
        sheet.observe(SIZES, 2.0)
    for sheet in sheets:
        assert LAYOUT.part(sheet.total_row(), COUNT) == [111]
        assert LAYOUT.part(sheet.total_row(), SIZES) == [0, 3, 0, 6]


def test_a_bound_belongs_to_the_bucket_below_it() -> None:
    sheet = Sheet.alone(LAYOUT)
    for value in (0.0, 1.0, 1.5, 4.0, 4.5):
        sheet.observe(SIZES, value, times=2)
    numbers = LAYOUT.part(sheet.total_row(), SIZES)
    assert numbers == [4, 4, 2, 22]
    assert cumulative(SIZES, numbers) == [("1.0", 4), ("4.0", 8), ("+Inf", 10)]
