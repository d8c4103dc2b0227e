"""Charts: bars and lines for both themes, each with a text alternative."""

from collections.abc import Sequence
from typing import Any

from nicegui import ui

from penstock.ui import formatting
from penstock.ui.elements import with_label

_TEXT_COLOUR = "currentColor"  # the colour of quiet text in both themes; it needs the SVG renderer
_LINE_COLOUR = "#75828c44"
_SERIES_COLOURS = ("#2f7fb8", "#4a9a6c", "#d07a34", "#8a6fc0")


def show_bar_chart(labels: Sequence[str], values: Sequence[float | None], *, name: str, unit: str = "") -> ui.echart:
    """Show one bar per label."""
    return _show_chart(labels, {unit or name: values}, "bar", name)


def show_line_chart(labels: Sequence[str], series: dict[str, Sequence[float | None]], *, name: str) -> ui.echart:
    """Show one line per series."""
    return _show_chart(labels, series, "line", name)


def show_stacked_chart(labels: Sequence[str], series: dict[str, Sequence[float | None]], *, name: str) -> ui.echart:
    """Show one bar per label with a part for each series."""
    return _show_chart(labels, series, "bar", name, is_stacked=True)


def _show_chart(
    labels: Sequence[str],
    series: dict[str, Sequence[float | None]],
    chart_type: str,
    name: str,
    *,
    is_stacked: bool = False,
) -> ui.echart:
    chart = ui.echart(
        {
            "color": list(_SERIES_COLOURS),
            "textStyle": {"fontFamily": "inherit"},
            "tooltip": {"trigger": "axis", "renderMode": "richText"},  # drawn, so that no text becomes markup
            "legend": {"show": len(series) > 1, "top": 0, "textStyle": {"color": _TEXT_COLOUR}},
            "grid": {"left": 8, "right": 8, "top": 32, "bottom": 8, "containLabel": True},
            "xAxis": {"type": "category", "data": list(labels), **_axis(), "splitLine": {"show": False}},
            "yAxis": {"type": "value", **_axis()},
            "series": [_series(series_name, values, chart_type, is_stacked) for series_name, values in series.items()],
        },
        renderer="svg",
    )
    return with_label(chart.classes("w-full h-56 quiet").props("role=img"), _text_alternative(name, labels, series))


def _series(name: str, values: Sequence[float | None], chart_type: str, is_stacked: bool) -> dict[str, Any]:
    stack = {"stack": "all"} if is_stacked else {}
    return {"name": name, "type": chart_type, "data": list(values), "barMaxWidth": 40, "symbolSize": 6, **stack}


def _axis() -> dict[str, Any]:
    return {
        "axisLabel": {"color": _TEXT_COLOUR, "hideOverlap": True},
        "axisLine": {"lineStyle": {"color": _LINE_COLOUR}},
        "splitLine": {"lineStyle": {"color": _LINE_COLOUR}},
    }


def _text_alternative(name: str, labels: Sequence[str], series: dict[str, Sequence[float | None]]) -> str:
    """Describe the range of the labels and of each series."""
    ranges = []
    for series_name, values in series.items():
        numbers = [value for value in values if value is not None]
        if numbers:
            ranges.append(
                f"{series_name} from {formatting.format_count(min(numbers))} to {formatting.format_count(max(numbers))}"
            )
    span = f" between {labels[0]} and {labels[-1]}" if labels else ""
    return f"{name}{span}: {'; '.join(ranges) or 'no data'}"
