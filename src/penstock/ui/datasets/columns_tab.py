"""The columns of a version: what is known of each, and how the values of one are spread."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from nicegui import ui

from penstock.ui import formatting as shown
from penstock.ui import charts
from penstock.ui.layout import Visit, named, subheading, told
from penstock.ui.data_table import Column, grid

_NO_SPREAD = ("binary",)
_UNKNOWN = "unknown"
_MIDNIGHT = "T00:00:00"
_LONGEST_MARK = 26  # characters; enough for an instant with its microseconds
_COLUMNS = (
    Column("name", "Column"),
    Column("type", "Type", shown.type_name),
    Column("nullable", "NULL allowed", lambda may: "yes" if may else "no"),
    Column("nulls", "NULLs", right=True),
    Column("min", "Lowest", right=True),
    Column("max", "Highest", right=True),
)


def told_of(column: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """A column as the table shows it. Without a value there is no lowest one, which is not to say that it is unknown."""
    nulls, is_empty = column["nulls"], column["nulls"] == rows
    ends = {end: "–" if is_empty else _value(column[end], _UNKNOWN) for end in ("min", "max")}
    return {**column, **ends, "nulls": _UNKNOWN if nulls is None else f"{nulls:,}{share(nulls, rows)}"}


def share(part: int, whole: int) -> str:
    """` (12 %)`, where that says something."""
    if not part or not whole:
        return ""
    percent = 100 * part / whole
    return f" ({percent:.0f} %)" if percent >= 1 else " (< 1 %)"


def can_be_spread(column: Mapping[str, Any]) -> bool:
    type_ = column["type"]
    return type_ not in _NO_SPREAD if isinstance(type_, str) else "decimal" in type_


def edges(bins: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where each bin begins, and the last one ends; days without their midnights."""
    marks = [_mark(each["from"]) for each in bins] + [_mark(each["to"]) for each in bins[-1:]]
    plain = [mark.removesuffix("Z") for mark in marks]
    if all(mark.endswith(_MIDNIGHT) for mark in plain):
        return [mark.removesuffix(_MIDNIGHT) for mark in plain]
    return [mark.replace("T", " ") if _is_moment(mark) else mark for mark in plain]


def read_in_words(histogram: Mapping[str, Any], rows: int) -> str:
    """What the picture is made of."""
    read = shown.count(histogram["rows"], "row")
    told = [
        f"A sample of {read} of {rows:,}, from everywhere in the dataset" if histogram["sampled"] else f"All {read}"
    ]
    if histogram["nulls"]:
        told.append(f"{histogram['nulls']:,} NULL")
    if histogram["not_finite"]:
        told.append(f"{histogram['not_finite']:,} NaN or infinite, which are not drawn")
    if histogram["distinct"] is not None:
        told.append(shown.count(histogram["distinct"], "different value"))
    return "; ".join(told) + "."


class Columns:
    def __init__(self, visit: Visit, path: str, dataset: Mapping[str, Any]) -> None:
        self._visit, self._path, self._dataset = visit, f"{path}/profile", dataset

    async def show(self) -> None:
        dataset = self._dataset
        known = await self._visit.api.rows(self._path, version=dataset["version"])
        self._known = {each["name"]: told_of(each, known["rows"]) for each in known["columns"]}
        self._table = grid(_COLUMNS, list(self._known.values()), name=f"Columns of {dataset['name']}").classes("mt-2")
        names = [each["name"] for each in known["columns"] if can_be_spread(each)]
        if not names or not known["rows"]:
            return
        subheading("How values are spread")
        choice = ui.select(
            names, value=names[0], label="Column", on_change=told(lambda event: self._spread(event.value))
        )
        choice.props("outlined dense options-dense").classes("w-full max-w-sm")
        self._chosen = names[0]
        self._picture = ui.column().classes("w-full gap-2").props("aria-live=polite")
        await self._spread(names[0])

    async def _spread(self, column: str) -> None:
        self._chosen = column
        self._picture.clear()
        with self._picture:
            named(ui.spinner(size="lg"), "Reading the values")
        answer = await self._visit.api.rows(self._path, version=self._dataset["version"], column=column)
        if column != self._chosen or self._picture.is_deleted:
            return
        # Who has read the values may know more of their column than the catalog does.
        self._known |= {
            each["name"]: told_of(each, answer["rows"]) for each in answer["columns"] if each["name"] == column
        }
        self._table.refill(list(self._known.values()))
        self._picture.clear()
        with self._picture:
            histogram = answer["histogram"]
            if histogram["bins"]:
                _bins(histogram)
            if histogram["top"]:
                _top(histogram)
            ui.label(read_in_words(histogram, answer["rows"])).classes("text-sm quiet")


def _bins(histogram: Mapping[str, Any]) -> None:
    *starts, end = edges(histogram["bins"])
    counts = [each["count"] for each in histogram["bins"]]
    with ui.card().classes("w-full p-3").props("flat bordered"):
        charts.bars(starts, counts, name=f"Values of {histogram['column']}", unit="rows")
        ui.label(f"A bar begins at its label and ends where the next begins; the last ends at {end}.").classes(
            "text-sm quiet"
        )


def _top(histogram: Mapping[str, Any]) -> None:
    """Bars that lie: texts need room."""
    valued = histogram["rows"] - histogram["nulls"]
    most = histogram["top"][0]["count"]
    with (
        ui.card().classes("w-full p-3 gap-1").props("flat bordered"),
        ui.element("div")
        .classes("w-full grid gap-x-3 gap-y-1 items-center grid-cols-[minmax(5rem,1fr)_2fr_auto] text-sm")
        .props("role=list") as bars,
    ):
        named(bars, f"Most frequent values of {histogram['column']}")
        for each in histogram["top"]:
            with ui.element("div").classes("contents").props("role=listitem"):
                text = shown.cell(each["value"]) + ("…" if each["cut"] else "")
                ui.label(text or "(empty)").classes("break-anywhere line-clamp-2")
                with ui.element("div").classes("h-4").props("aria-hidden=true"):
                    ui.element("div").classes("h-full rounded bg-primary").style(
                        f"width: {max(100 * each['count'] / most, 0.5):.1f}%"
                    )
                ui.label(f"{each['count']:,}{share(each['count'], valued)}").classes("text-right tabular-nums")


def _value(value: Any, otherwise: str) -> str:
    return otherwise if value is None else shown.cell(value)


def _mark(value: Any) -> str:
    """Where a bin begins. What has too many digits for an axis is rounded for it."""
    match value:
        case str():
            text = value
        case Decimal():
            text = f"{value.normalize():,f}"
        case _:
            text = f"{value:,}"
    return text if len(text) <= _LONGEST_MARK else f"{float(value):.6g}"


def _is_moment(mark: str) -> bool:
    return mark[:4].isdigit() and "T" in mark
