"""Upload dialog: choose a file, detect its format, and send it once even if the request is repeated."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from nicegui import events, ui
from nicegui.elements.upload_files import FileUpload

from penstock.core.names import DatasetName
from penstock.errors import Invalid
from penstock.ui import formatting
from penstock.ui.actions import show_errors
from penstock.ui.api_client import ApiError, path_segment
from penstock.ui.dialogs import dialog_result
from penstock.ui.elements import with_label
from penstock.ui.session import PageSession

MAX_FILE_BYTES = 1 << 30  # larger files must be sent through the API


@dataclass(frozen=True)
class UploadFormat:
    """A file format that can be uploaded."""

    media_type: str
    extensions: tuple[str, ...]


FORMATS = {
    "CSV": UploadFormat("text/csv", (".csv", ".txt")),
    "JSON lines": UploadFormat("application/x-ndjson", (".jsonl", ".ndjson", ".json")),
    "Parquet": UploadFormat("application/vnd.apache.parquet", (".parquet", ".pq")),
    "Arrow": UploadFormat("application/vnd.apache.arrow.stream", (".arrow", ".arrows", ".ipc", ".feather")),
}


def detect_format(name: str) -> str | None:
    """Detect the format of a file from its extension."""
    return next((label for label, format in FORMATS.items() if name.lower().endswith(format.extensions)), None)


@dataclass(frozen=True)
class ChosenFile:
    """A file that the user chose. Its idempotency key ensures that it is committed once if it is sent again."""

    file: FileUpload
    idempotency_key: str = field(default_factory=lambda: f"page-{uuid4()}")

    def headers(self, format: str) -> dict[str, str]:
        return {"content-type": FORMATS[format].media_type, "idempotency-key": self.idempotency_key}


async def append_file(session: PageSession, dataset: str) -> dict[str, Any] | None:
    """Ask for a file and append its rows.

    Returns:
        The receipt, or None if nothing was appended.
    """
    dialog = _UploadDialog(
        f"Append rows to {dataset}",
        "Append",
        "CSV and JSON values are converted to the dataset's types. Either all rows are appended or none.",
    )

    async def send(content: AsyncIterator[bytes], headers: dict[str, str]) -> dict[str, Any]:
        response = await session.api.request(
            "POST", f"/datasets/{path_segment(dataset)}/rows", content=content, headers=headers
        )
        receipt: dict[str, Any] = response.body
        return receipt

    return await dialog.run(send)


async def create_dataset(session: PageSession) -> dict[str, Any] | None:
    """Ask for a name and a file, and create a dataset with the rows of the file.

    Returns:
        The dataset, or None if none was created.
    """
    dialog = _UploadDialog("New dataset from a file", "Create", "The columns and types are taken from the file.")
    with dialog.header:
        name = ui.input("Name", placeholder="finance.sales")
        name.props('outlined dense autofocus hint="namespace.name"').classes("w-full")

    def is_valid_name() -> bool:
        try:
            DatasetName.parse(name.value.strip())
        except Invalid as error:
            name.error = error.message
            return False
        name.error = None
        return True

    async def send(content: AsyncIterator[bytes], headers: dict[str, str]) -> dict[str, Any]:
        options = {"name": name.value.strip()}
        dataset: dict[str, Any] = (
            await session.api.request("POST", "/datasets", content=content, headers=headers, options=options)
        ).body
        return dataset

    return await dialog.run(send, is_valid_name)


Send = Callable[[AsyncIterator[bytes], dict[str, str]], Awaitable[dict[str, Any]]]


class _UploadDialog:
    """Dialog to choose and send a file. It stays open until the rows are committed or the user cancels."""

    def __init__(self, title: str, verb: str, note: str) -> None:
        self._file: ChosenFile | None = None
        with ui.dialog() as self._dialog, ui.card().classes("w-full max-w-lg gap-3"):
            with_label(self._dialog, title)
            ui.label(title).classes("text-lg break-anywhere").props('role=heading aria-level="2"')
            self.header = ui.column().classes("w-full")
            self._upload = ui.upload(
                label="Choose a file or drop it here",
                auto_upload=True,
                max_file_size=MAX_FILE_BYTES,
                on_upload=self._choose,
                on_rejected=lambda: self._show_error(
                    f"The file exceeds the limit of {formatting.format_size(MAX_FILE_BYTES)}. Use the API for larger files."
                ),
            )
            self._upload.on("failed", lambda: self._show_error("The upload failed. Try again."), args=[])
            self._upload.props("flat bordered").classes("w-full")
            self._chosen = ui.label("No file selected.").classes("break-anywhere").props("aria-live=polite")
            self._format = ui.select(list(FORMATS), label="Format").props("outlined dense").classes("w-full")
            ui.label(note).classes("text-sm quiet")
            self._progress = ui.column().classes("w-full gap-1").props("aria-live=polite")
            self._error = ui.label().classes("text-negative break-anywhere").props("role=alert")
            self._error.set_visibility(False)
            with ui.row().classes("w-full justify-end"):
                self._cancel = ui.button("Cancel", on_click=lambda: self._dialog.submit(None)).props("flat no-caps")
                self._submit = ui.button(verb).props("unelevated no-caps")

    async def run(self, send: Send, is_valid: Callable[[], bool] = lambda: True) -> dict[str, Any] | None:
        """Show the dialog and send the chosen file.

        Args:
            send: Sends the content with the given headers.
            is_valid: Checks the other inputs and shows their errors.

        Returns:
            The result of `send`, or None if the user cancelled.
        """

        async def submit() -> None:
            self._show_error(None)
            if self._file is None:
                self._show_error("Choose a file first.")
            elif self._format.value is None:
                self._show_error("Choose the format of the file.")
            elif is_valid():
                await self._send(send, self._file)

        self._submit.on_click(show_errors(submit))
        result: dict[str, Any] | None = await dialog_result(self._dialog)
        return result

    def _choose(self, event: events.UploadEventArguments) -> None:
        self._file = ChosenFile(event.file)
        self._chosen.text = f"{event.file.name} · {formatting.format_size(event.file.size())}"
        self._format.value = detect_format(event.file.name)
        self._upload.props["label"] = "Choose another file or drop it here"
        self._upload.reset()
        self._show_error(None)

    async def _send(self, send: Send, chosen: ChosenFile) -> None:
        self._set_busy(True)
        self._progress.clear()
        with self._progress:
            status = ui.label("Uploading…").classes("text-sm")
            bar = with_label(ui.linear_progress(0, show_value=False), "Upload progress")
        size = chosen.file.size() or 1

        async def read_chunks() -> AsyncIterator[bytes]:
            sent = 0
            async for chunk in chosen.file.iterate():
                yield chunk
                sent += len(chunk)
                bar.value = sent / size
            status.text = "Writing…"
            bar.props("indeterminate")

        try:
            result = await send(read_chunks(), chosen.headers(self._format.value))
        except ApiError as error:
            sent_name = str(error.payload.get("path") or "")  # the service's name of a file without a name
            self._show_error(
                formatting.to_sentence(
                    error.message.replace(sent_name, chosen.file.name) if sent_name else error.message
                )
            )
        else:
            self._dialog.submit(result)
        finally:
            if not self._dialog.is_deleted:
                self._progress.clear()
                self._set_busy(False)

    def _set_busy(self, is_busy: bool) -> None:
        """Disable all inputs while rows are sent."""
        for element in (self._submit, self._cancel, self._upload, self._format):
            element.set_enabled(not is_busy)
        self._dialog.props("persistent") if is_busy else self._dialog.props(remove="persistent")

    def _show_error(self, message: str | None) -> None:
        self._error.text = message or ""
        self._error.set_visibility(message is not None)
