"""Columns tab of a dataset: statistics of each column, and a histogram of one."""

from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from penstock.ui import charts, formatting
from penstock.ui.actions import show_errors
from penstock.ui.data_table import TableColumn, show_table
from penstock.ui.elements import subheading, with_label
from penstock.ui.session import PageSession

_TYPES_WITHOUT_HISTOGRAM = ("binary",)
_UNKNOWN = "unknown"
_MIDNIGHT = "T00:00:00"
_MAX_LABEL_CHARS = 26  # enough for a timestamp with microseconds
_COLUMNS = (
    TableColumn("name", "Column"),
    TableColumn("type", "Type", formatting.format_type),
    TableColumn("nullable", "NULL allowed", lambda is_nullable: "yes" if is_nullable else "no"),
    TableColumn("nulls", "NULLs", align_right=True),
    TableColumn("min", "Minimum", align_right=True),
    TableColumn("max", "Maximum", align_right=True),
)


def to_table_row(column: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Return a column as a table row. A column without values has no minimum; this differs from an unknown one."""
    nulls, is_empty = column["nulls"], column["nulls"] == rows
    bounds = {name: "–" if is_empty else _format_bound(column[name]) for name in ("min", "max")}
    return {**column, **bounds, "nulls": _UNKNOWN if nulls is None else _format_part(nulls, rows)}


def has_histogram(column: Mapping[str, Any]) -> bool:
    """Return whether the service computes a histogram of a column of this type."""
    type_ = column["type"]
    return type_ not in _TYPES_WITHOUT_HISTOGRAM if isinstance(type_, str) else "decimal" in type_


def bin_labels(bins: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the start of each bin and the end of the last one. If all are at midnight, only the dates."""
    labels = [_bin_label(bin_["from"]) for bin_ in bins] + [_bin_label(bin_["to"]) for bin_ in bins[-1:]]
    without_zone = [label.removesuffix("Z") for label in labels]
    if all(label.endswith(_MIDNIGHT) for label in without_zone):
        return [label.removesuffix(_MIDNIGHT) for label in without_zone]
    return [label.replace("T", " ") if _is_timestamp(label) else label for label in without_zone]


def describe_histogram(histogram: Mapping[str, Any], rows: int) -> str:
    """Describe the rows that a histogram is made of."""
    read = formatting.format_count(histogram["rows"], "row")
    parts = [f"Sample of {read} out of {formatting.format_count(rows)}" if histogram["sampled"] else f"All {read}"]
    if histogram["nulls"]:
        parts.append(f"{formatting.format_count(histogram['nulls'])} NULL")
    if histogram["not_finite"]:
        parts.append(f"{formatting.format_count(histogram['not_finite'])} NaN or infinite (not shown)")
    if histogram["distinct"] is not None:
        parts.append(formatting.format_count(histogram["distinct"], "distinct value"))
    return "; ".join(parts) + "."


class ColumnsTab:
    """The columns tab of one version of a dataset."""

    def __init__(self, session: PageSession, path: str, dataset: Mapping[str, Any]) -> None:
        self._session, self._path, self._dataset = session, f"{path}/profile", dataset

    async def show(self) -> None:
        dataset = self._dataset
        profile = await self._session.api.get_exact(self._path, version=dataset["version"])
        self._rows = {column["name"]: to_table_row(column, profile["rows"]) for column in profile["columns"]}
        self._table = show_table(_COLUMNS, list(self._rows.values()), name=f"Columns of {dataset['name']}").classes(
            "mt-2"
        )
        names = [column["name"] for column in profile["columns"] if has_histogram(column)]
        if not names or not profile["rows"]:
            return
        subheading("Value distribution")
        choice = ui.select(
            names,
            value=names[0],
            label="Column",
            on_change=show_errors(lambda event: self._show_histogram(event.value)),
        )
        choice.props("outlined dense options-dense").classes("w-full max-w-sm")
        self._chosen = names[0]
        self._chart = ui.column().classes("w-full gap-2").props("aria-live=polite")
        await self._show_histogram(names[0])

    async def _show_histogram(self, column: str) -> None:
        self._chosen = column
        self._chart.clear()
        with self._chart:
            with_label(ui.spinner(size="lg"), "Reading values")
        profile = await self._session.api.get_exact(self._path, version=self._dataset["version"], column=column)
        if column != self._chosen or self._chart.is_deleted:
            return
        # The histogram reads the values, so its statistics can be more complete than those of the catalog.
        self._rows |= {
            row["name"]: to_table_row(row, profile["rows"]) for row in profile["columns"] if row["name"] == column
        }
        self._table.set_rows(list(self._rows.values()))
        self._chart.clear()
        with self._chart:
            histogram = profile["histogram"]
            if histogram["bins"]:
                _show_bins(histogram)
            if histogram["top"]:
                _show_top_values(histogram)
            ui.label(describe_histogram(histogram, profile["rows"])).classes("text-sm quiet")


def _show_bins(histogram: Mapping[str, Any]) -> None:
    *starts, end = bin_labels(histogram["bins"])
    counts = [bin_["count"] for bin_ in histogram["bins"]]
    with ui.card().classes("w-full p-3").props("flat bordered"):
        charts.show_bar_chart(starts, counts, name=f"Values of {histogram['column']}", unit="rows")
        ui.label(f"Each bar starts at its label; the last bar ends at {end}.").classes("text-sm quiet")


def _show_top_values(histogram: Mapping[str, Any]) -> None:
    """Show the most frequent values as horizontal bars, which leave room for long texts."""
    non_null_rows = histogram["rows"] - histogram["nulls"]
    max_count = histogram["top"][0]["count"]
    with (
        ui.card().classes("w-full p-3 gap-1").props("flat bordered"),
        ui.element("div")
        .classes("w-full grid gap-x-3 gap-y-1 items-center grid-cols-[minmax(5rem,1fr)_2fr_auto] text-sm")
        .props("role=list") as bars,
    ):
        with_label(bars, f"Most frequent values of {histogram['column']}")
        for entry in histogram["top"]:
            with ui.element("div").classes("contents").props("role=listitem"):
                text = formatting.format_cell(entry["value"]) + ("…" if entry["cut"] else "")
                ui.label(text or "(empty)").classes("break-anywhere line-clamp-2")
                with ui.element("div").classes("h-4").props("aria-hidden=true"):
                    ui.element("div").classes("h-full rounded bg-primary").style(
                        f"width: {round(max(100 * entry['count'] / max_count, 0.5), 1)}%"
                    )
                ui.label(_format_part(entry["count"], non_null_rows)).classes("text-right tabular-nums")


def _format_part(count: int, whole: int) -> str:
    return f"{formatting.format_count(count)}{formatting.format_share(count, whole)}"


def _format_bound(value: Any) -> str:
    return _UNKNOWN if value is None else formatting.format_cell(value)


def _bin_label(value: Any) -> str:
    """Format the start of a bin. A number with too many digits for an axis is rounded."""
    if isinstance(value, str):
        return value
    return formatting.format_axis_number(value, _MAX_LABEL_CHARS)


def _is_timestamp(label: str) -> bool:
    return label[:4].isdigit() and "T" in label
