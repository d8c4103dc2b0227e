// Asks before the user leaves a page with unsaved changes (window.penstockUnsaved), and reports a lost page state.
// Stores the time zone in a cookie, for local times beside UTC. Returns the focus to a column header that is drawn again.
(() => {
  const timeZone = Intl.DateTimeFormat().resolvedOptions().timeZone || "";
  document.cookie = `penstock_time_zone=${encodeURIComponent(timeZone)}; path=/ui; max-age=31536000; samesite=strict`;

  const RECONNECT_MILLISECONDS = 3000;
  let isLost = false;  // the connection was lost, and the service may have discarded the state of the page
  let reconnectTimer;

  const watchConnection = () => {
    if (!window.socket) return setTimeout(watchConnection, 200);
    window.socket.on("disconnect", () => { clearTimeout(reconnectTimer); isLost = true; });
    window.socket.on("connect", () => { reconnectTimer = setTimeout(() => { isLost = false; }, RECONNECT_MILLISECONDS); });
  };

  const showLostPage = () => {
    const alert = document.createElement("div");
    alert.setAttribute("role", "alert");
    alert.className = "penstock-lost-page";
    alert.textContent = "The service has discarded the state of this page, so nothing on it can be saved. "
      + "Copy your input, then reload the page.";
    document.body.append(alert);
  };

  window.addEventListener("beforeunload", event => {
    if (!window.penstockUnsaved) return;
    event.preventDefault();
    if (isLost) setTimeout(showLostPage, 100);  // shown if the user stays on the page
  });
  watchConnection();

  // A table draws its header cells again whenever the page changes, which takes their focus away.
  let focusedHeader = null;  // the header button that had the focus last, unless the user has moved on
  const findHeader = () => {
    const column = focusedHeader.element.dataset.sort;
    return [...document.querySelectorAll(`[data-sort="${column}"]`)]
      .find(button => button.closest("[role=region]")?.getAttribute("aria-label") === focusedHeader.table);
  };
  document.addEventListener("focusin", ({ target }) => {
    const isHeader = target.dataset?.sort !== undefined;
    focusedHeader = isHeader ? { element: target, table: target.closest("[role=region]")?.getAttribute("aria-label") } : null;
  });
  document.addEventListener("pointerdown", () => { focusedHeader = null; }, true);
  new MutationObserver(() => {
    if (!focusedHeader || focusedHeader.element.isConnected || document.activeElement !== document.body) return;
    findHeader()?.focus();
  }).observe(document, { childList: true, subtree: true });
})();
