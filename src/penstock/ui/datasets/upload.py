"""A file that somebody brings: what it holds, how far it is, and that it is taken once, however often it is sent."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from nicegui import events, ui
from nicegui.elements.upload_files import FileUpload

from penstock.core.names import DatasetName
from penstock.errors import Invalid
from penstock.ui import formatting as shown
from penstock.ui.api_client import Problem, part
from penstock.ui.layout import Visit, answered, named, told

LARGEST_FILE = 1 << 30  # bytes; larger ones go through the API


@dataclass(frozen=True)
class Format:
    kind: str  # its media type
    endings: tuple[str, ...]


FORMATS = {
    "CSV": Format("text/csv", (".csv", ".txt")),
    "JSON lines": Format("application/x-ndjson", (".jsonl", ".ndjson", ".json")),
    "Parquet": Format("application/vnd.apache.parquet", (".parquet", ".pq")),
    "Arrow": Format("application/vnd.apache.arrow.stream", (".arrow", ".arrows", ".ipc", ".feather")),
}


def format_of(name: str) -> str | None:
    """What a file's name says of its format."""
    return next((each for each, format in FORMATS.items() if name.lower().endswith(format.endings)), None)


@dataclass(frozen=True)
class Brought:
    """A file that was chosen. It has a key of its own: however often it is sent, it is taken once."""

    file: FileUpload
    key: str = field(default_factory=lambda: f"page-{uuid4()}")

    def headers(self, format: str) -> dict[str, str]:
        return {"content-type": FORMATS[format].kind, "idempotency-key": self.key}


async def append(visit: Visit, dataset: str) -> dict[str, Any] | None:
    """Ask for a file and append its rows. The receipt, or None if nothing was appended."""
    form = _Form(
        f"Append rows to {dataset}", "Append", "A CSV or JSON file is read with the dataset's types. All rows, or none."
    )

    async def send(content: AsyncIterator[bytes], headers: dict[str, str]) -> dict[str, Any]:
        answer = await visit.api.ask("POST", f"/datasets/{part(dataset)}/rows", content=content, headers=headers)
        receipt: dict[str, Any] = answer.body
        return receipt

    return await form.answer(send)


async def create(visit: Visit) -> dict[str, Any] | None:
    """Ask for a name and a file, and make a dataset of its rows. The dataset, or None if there is none."""
    form = _Form("New dataset from a file", "Create", "Its columns and types are those of the file.")
    with form.above:
        name = ui.input("Name", placeholder="finance.sales")
        name.props('outlined dense autofocus hint="schema.table"').classes("w-full")

    def is_named() -> bool:
        try:
            DatasetName.parse(name.value.strip())
        except Invalid as refusal:
            name.error = refusal.message
            return False
        name.error = None
        return True

    async def send(content: AsyncIterator[bytes], headers: dict[str, str]) -> dict[str, Any]:
        options = {"name": name.value.strip()}
        made: dict[str, Any] = (
            await visit.api.ask("POST", "/datasets", content=content, headers=headers, options=options)
        ).body
        return made

    return await form.answer(send, is_named)


Send = Callable[[AsyncIterator[bytes], dict[str, str]], Awaitable[dict[str, Any]]]


class _Form:
    """A dialog with a file in it. It stays open until the rows are taken, or nobody wants to send them any more."""

    def __init__(self, title: str, verb: str, note: str) -> None:
        self._brought: Brought | None = None
        with ui.dialog() as self._dialog, ui.card().classes("w-full max-w-lg gap-3"):
            named(self._dialog, title)
            ui.label(title).classes("text-lg break-anywhere").props('role=heading aria-level="2"')
            self.above = ui.column().classes("w-full")
            self._upload = ui.upload(
                label="Choose a file, or drop it here",
                auto_upload=True,
                max_file_size=LARGEST_FILE,
                on_upload=self._take,
                on_rejected=lambda: self._complain(f"A file may have {shown.size(LARGEST_FILE)} here."),
            )
            self._upload.on("failed", lambda: self._complain("The file did not arrive. Try again."), args=[])
            self._upload.props("flat bordered").classes("w-full")
            self._chosen = ui.label("No file yet.").classes("break-anywhere").props("aria-live=polite")
            self._format = ui.select(list(FORMATS), label="Format").props("outlined dense").classes("w-full")
            ui.label(note).classes("text-sm quiet")
            self._progress = ui.column().classes("w-full gap-1").props("aria-live=polite")
            self._wrong = ui.label().classes("text-negative break-anywhere").props("role=alert")
            self._wrong.set_visibility(False)
            with ui.row().classes("w-full justify-end"):
                self._cancel = ui.button("Cancel", on_click=lambda: self._dialog.submit(None)).props("flat no-caps")
                self._go = ui.button(verb).props("unelevated no-caps")

    async def answer(self, send: Send, is_right: Callable[[], bool] = lambda: True) -> dict[str, Any] | None:
        """`is_right`: is the rest of the form? It says itself what is not."""

        async def go() -> None:
            self._complain(None)
            if self._brought is None:
                self._complain("Choose a file first.")
            elif self._format.value is None:
                self._complain("Say which format the file has.")
            elif is_right():
                await self._send(send, self._brought)

        self._go.on_click(told(go))
        answer: dict[str, Any] | None = await answered(self._dialog)
        return answer

    def _take(self, event: events.UploadEventArguments) -> None:
        self._brought = Brought(event.file)
        self._chosen.text = f"{event.file.name} · {shown.size(event.file.size())}"
        self._format.value = format_of(event.file.name)
        self._upload.props["label"] = "Choose another file, or drop it here"
        self._upload.reset()
        self._complain(None)

    async def _send(self, send: Send, brought: Brought) -> None:
        self._wait(True)
        self._progress.clear()
        with self._progress:
            says = ui.label("Sending…").classes("text-sm")
            bar = named(ui.linear_progress(0, show_value=False), "How much is sent")
        size = brought.file.size() or 1

        async def pieces() -> AsyncIterator[bytes]:
            sent = 0
            async for piece in brought.file.iterate():
                yield piece
                sent += len(piece)
                bar.value = sent / size
            says.text = "Writing…"
            bar.props("indeterminate")

        try:
            answer = await send(pieces(), brought.headers(self._format.value))
        except Problem as problem:
            ours = str(problem.told.get("path") or "")  # what the service calls a file that came without a name
            self._complain(
                shown.sentence(problem.sentence.replace(ours, brought.file.name) if ours else problem.sentence)
            )
        else:
            self._dialog.submit(answer)
        finally:
            if not self._dialog.is_deleted:
                self._progress.clear()
                self._wait(False)

    def _wait(self, is_waiting: bool) -> None:
        """While rows are on their way, nothing else can be done with them."""
        for each in (self._go, self._cancel, self._upload, self._format):
            each.set_enabled(not is_waiting)
        self._dialog.props("persistent") if is_waiting else self._dialog.props(remove="persistent")

    def _complain(self, sentence: str | None) -> None:
        self._wrong.text = sentence or ""
        self._wrong.set_visibility(sentence is not None)
