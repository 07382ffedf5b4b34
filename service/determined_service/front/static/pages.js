// The pages' one script: live updates, times in the reader's zone, the palette, copying. Pages work without it.
"use strict";

const home = document.body.dataset.home;

// ---- times -------------------------------------------------------------------------------------------------

const short = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

function localize(root) {
  for (const one of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(one.dateTime);
    if (Number.isNaN(moment.getTime())) continue;
    one.textContent = one.dataset.clock ? moment.toLocaleTimeString() : short.format(moment);
    one.title = exact.format(moment);
  }
  reach();
}

// A box whose content is wider than it is scrolls by the keyboard, too.
function reach() {
  for (const one of document.querySelectorAll(".wide")) {
    if (one.scrollWidth > one.clientWidth) one.tabIndex = 0; else one.removeAttribute("tabindex");
  }
}
window.addEventListener("resize", reach);

// ---- live updates ------------------------------------------------------------------------------------------
// Elements with data-part are exchanged for what the server sends now; what the reader types into stays.

const shown = new WeakMap();

function keepsTyping(part) {
  const active = document.activeElement;
  return part.contains(active) && active.matches("input:not([type=checkbox]), textarea, select");
}

function exchange(fetched) {
  for (const part of document.querySelectorAll("[data-part]")) {
    const found = fetched.getElementById(part.id);
    if (!found || keepsTyping(part) || part.querySelector(":popover-open")) continue;
    const html = found.innerHTML;
    if (shown.get(part) === html) continue;
    const link = part.contains(document.activeElement) && document.activeElement.getAttribute("href");
    const box = part.contains(document.activeElement) && document.activeElement.matches("input[type=checkbox]") && document.activeElement.value;
    const place = part.scrollTop;
    const ticked = new Set([...part.querySelectorAll("input[type=checkbox]:checked")].map((one) => `${one.name}=${one.value}`));
    shown.set(part, html);
    part.replaceChildren(...found.childNodes);
    for (const one of part.querySelectorAll("input[type=checkbox]")) if (ticked.has(`${one.name}=${one.value}`)) one.checked = true;
    part.scrollTop = place;
    localize(part);
    if (link) part.querySelector(`a[href="${CSS.escape(link)}"]`)?.focus();
    if (box) part.querySelector(`input[type=checkbox][value="${CSS.escape(box)}"]`)?.focus();
  }
  document.title = fetched.title;
}

let renewing = false;
let again = false;

async function renew() {
  if (renewing) { again = true; return; }
  renewing = true;
  try {
    const answer = await fetch(location.href, { headers: { "X-Live": "1" }, redirect: "follow" });
    if (answer.redirected && new URL(answer.url).pathname === `${home}/login`) { location.reload(); return; }
    if (answer.ok) exchange(new DOMParser().parseFromString(await answer.text(), "text/html"));
    document.dispatchEvent(new CustomEvent("renewed"));
  } catch { /* The stream says that the service is away. */ }
  await new Promise((done) => setTimeout(done, 1000));
  renewing = false;
  if (again) { again = false; renew(); }
}

let stream = null;
let wasAway = false;

function away(is) {
  const note = document.getElementById("away");
  if (is && note.hidden) {
    note.textContent = `The service does not answer. This page shows what was there at ${new Date().toLocaleTimeString()}, and goes on by itself.`;
  }
  note.hidden = !is;
}

function follow() {
  const live = document.body.dataset.live;
  // Browsers allow six connections to a host: only the pages in sight hold one.
  if (!live || document.visibilityState === "hidden" || stream) return;
  stream = new EventSource(`${home}/events?${live.split(" ").map((one) => `topic=${encodeURIComponent(one)}`).join("&")}`);
  stream.addEventListener("open", () => { if (wasAway) renew(); wasAway = false; away(false); });
  stream.addEventListener("changed", renew);
  stream.addEventListener("error", () => {
    wasAway = true;
    away(true);
    // A refusal ends the stream for good: ask again, which leads to the login page if that is why.
    if (stream && stream.readyState === EventSource.CLOSED) {
      stream = null;
      setTimeout(async () => { await renew(); follow(); }, 3000);
    }
  });
}

document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "hidden") { stream?.close(); stream = null; wasAway = true; } else follow();
});
window.addEventListener("pagehide", () => { stream?.close(); stream = null; });

// ---- the palette -------------------------------------------------------------------------------------------

const palette = document.getElementById("palette");
const sought = palette?.querySelector("input");
const results = palette?.querySelector("ul");
let asked = 0;

async function seek() {
  const mine = ++asked;
  const answer = await fetch(`${home}/find?q=${encodeURIComponent(sought.value)}`);
  if (!answer.ok || mine !== asked) return;
  const found = await answer.json();
  results.replaceChildren(...found.map((one, index) => {
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.href = one.address;
    link.id = `found-${index}`;
    link.setAttribute("role", "option");
    link.setAttribute("aria-selected", String(index === 0));
    const kind = document.createElement("span");
    kind.className = "soft";
    kind.textContent = `${one.kind} `;
    link.append(kind, one.title);
    item.setAttribute("role", "presentation");
    item.append(link);
    return item;
  }));
  sought.setAttribute("aria-activedescendant", found.length ? "found-0" : "");
}

function openPalette() {
  if (!palette || palette.open) return;
  palette.showModal();
  sought.value = "";
  seek();
}

if (palette) {
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches?.("input, textarea, select, [contenteditable]");
    if ((event.key === "k" && (event.ctrlKey || event.metaKey)) || (event.key === "/" && !typing)) {
      event.preventDefault();
      openPalette();
    }
  });
  let waiting = 0;
  sought.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(seek, 120); });
  sought.addEventListener("keydown", (event) => {
    const links = [...results.querySelectorAll("a")];
    const at = links.findIndex((one) => one.getAttribute("aria-selected") === "true");
    if (event.key === "Enter" && links[at]) { event.preventDefault(); location.href = links[at].href; }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !links.length) return;
    event.preventDefault();
    const to = links[(at + step + links.length) % links.length];
    links.forEach((one) => one.setAttribute("aria-selected", String(one === to)));
    to.scrollIntoView({ block: "nearest" });
    sought.setAttribute("aria-activedescendant", to.id);
  });
  document.getElementById("open-palette")?.addEventListener("click", openPalette);
}

// ---- small things ------------------------------------------------------------------------------------------

document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("[data-copy]");
  if (!button) return;
  try { await navigator.clipboard.writeText(button.dataset.copy); button.textContent = "copied"; }
  catch { button.textContent = "select and copy it"; }
});

document.addEventListener("change", (event) => {
  const box = event.target;
  if (box.matches("input[data-all]")) {
    for (const one of document.querySelectorAll(`input[type=checkbox][name="${box.dataset.all}"]`)) one.checked = box.checked;
  }
  if (box.matches("[data-submits]")) box.form.requestSubmit();
});

// A form with data-typing sends itself while the reader types, and exchanges the parts of the page.
let typed = 0;
document.addEventListener("input", (event) => {
  const form = event.target.closest?.("form[data-typing]");
  if (!form) return;
  clearTimeout(typed);
  typed = setTimeout(() => {
    const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
    history.replaceState(null, "", `${location.pathname}?${query}`);
    renew();
  }, 200);
});

for (const part of document.querySelectorAll("[data-part]")) shown.set(part, part.innerHTML);
localize(document);
follow();
