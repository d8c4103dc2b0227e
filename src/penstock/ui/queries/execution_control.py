"""Requests that run a query, with a button that cancels the query."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from nicegui import ui

from penstock.ui.actions import show_errors
from penstock.ui.api_client import ApiClient, ApiError, ApiResponse


class ExecutionControl:
    """Send one request at a time. The button Cancel is visible while it runs."""

    def __init__(self, api: ApiClient) -> None:
        self._api, self._id = api, ""  # of the execution
        self._button = ui.button("Cancel", icon="stop", on_click=show_errors(self._cancel)).props("outline no-caps")
        self._button.set_visibility(False)

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        exact_decimals: bool = False,
    ) -> ApiResponse:
        """Send a request that runs a query.

        Raises:
            ApiError: The service responded with an error; QUERY_CANCELLED after the user has cancelled the query.
        """
        self._id = str(uuid4())
        self._show_button(True)
        try:
            return await self._api.request(
                method,
                path,
                body,
                headers={**(headers or {}), "x_execution_id": self._id},
                exact_decimals=exact_decimals,
            )
        finally:
            self._show_button(False)

    async def _cancel(self) -> None:
        try:
            await self._api.delete(f"/queries/executions/{self._id}")
        except ApiError as error:
            if error.status != 404:  # the query has ended meanwhile
                raise

    def _show_button(self, is_visible: bool) -> None:
        if not self._button.is_deleted:
            self._button.set_visibility(is_visible)
