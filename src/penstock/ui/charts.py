"""Simple charts: bars and lines that say what they show, in either theme, also to those who cannot see them."""

from collections.abc import Sequence
from typing import Any

from nicegui import ui

from penstock.ui.layout import named

_INK = "currentColor"  # that of quiet text, in either theme; drawings as SVG can have it
_LINE = "#75828c44"
_BARS = ("#2f7fb8", "#4a9a6c", "#d07a34", "#8a6fc0")


def bars(labels: Sequence[str], values: Sequence[float | None], *, name: str, unit: str = "") -> ui.echart:
    """One bar for each label."""
    return _chart(labels, {unit or name: values}, "bar", name)


def lines(labels: Sequence[str], series: dict[str, Sequence[float | None]], *, name: str) -> ui.echart:
    """A line for each series."""
    return _chart(labels, series, "line", name)


def stacked(labels: Sequence[str], series: dict[str, Sequence[float | None]], *, name: str) -> ui.echart:
    """For each label one bar of several parts."""
    return _chart(labels, series, "bar", name, stack=True)


def _chart(
    labels: Sequence[str], series: dict[str, Sequence[float | None]], kind: str, name: str, *, stack: bool = False
) -> ui.echart:
    chart = ui.echart(
        {
            "color": list(_BARS),
            "textStyle": {"fontFamily": "inherit"},
            "tooltip": {"trigger": "axis", "renderMode": "richText"},  # drawn, so that no text becomes markup
            "legend": {"show": len(series) > 1, "top": 0, "textStyle": {"color": _INK}},
            "grid": {"left": 8, "right": 8, "top": 32, "bottom": 8, "containLabel": True},
            "xAxis": {"type": "category", "data": list(labels), **_axis(), "splitLine": {"show": False}},
            "yAxis": {"type": "value", **_axis()},
            "series": [_series(each, values, kind, stack) for each, values in series.items()],
        },
        renderer="svg",
    )
    return named(chart.classes("w-full h-56 quiet").props("role=img"), _in_words(name, labels, series))


def _series(name: str, values: Sequence[float | None], kind: str, stack: bool) -> dict[str, Any]:
    more = {"stack": "all"} if stack else {}
    return {"name": name, "type": kind, "data": list(values), "barMaxWidth": 40, "symbolSize": 6, **more}


def _axis() -> dict[str, Any]:
    return {
        "axisLabel": {"color": _INK, "hideOverlap": True},
        "axisLine": {"lineStyle": {"color": _LINE}},
        "splitLine": {"lineStyle": {"color": _LINE}},
    }


def _in_words(name: str, labels: Sequence[str], series: dict[str, Sequence[float | None]]) -> str:
    """The chart as a sentence: where it begins and ends, and how far it goes."""
    told = []
    for each, values in series.items():
        known = [value for value in values if value is not None]
        if known:
            told.append(f"{each} from {min(known):,} to {max(known):,}")
    span = f" between {labels[0]} and {labels[-1]}" if labels else ""
    return f"{name}{span}: {'; '.join(told) or 'nothing yet'}"
