// Trials and logs: the end of a log stays in sight while it grows, and the address says how curves are drawn.
"use strict";

const NEAR = 40;
const log = document.getElementById("log");

function toEnd() {
  // Who has scrolled up reads: the lines stay until the end is in sight again.
  if (log?.dataset.end !== undefined && log.dataset.part !== undefined) log.scrollTop = log.scrollHeight;
}

log?.addEventListener("scroll", () => {
  const isNear = log.scrollTop + log.clientHeight > log.scrollHeight - NEAR;
  if (isNear) log.dataset.part = ""; else delete log.dataset.part;
});
toEnd();
document.addEventListener("renewed", toEnd);
log?.querySelector(".sought")?.scrollIntoView({ block: "center" });

// How curves are drawn is in the address, so that it can be shared.
const drawn = document.querySelector("form[data-kept]");
let range = new URLSearchParams(location.search);
range = range.has("low") && range.has("high") ? [range.get("low"), range.get("high")] : null;

function keep() {
  const address = new URLSearchParams(new FormData(drawn));
  if (range) { address.set("low", range[0]); address.set("high", range[1]); }
  history.replaceState(null, "", `${location.pathname}?${address}`);
}

if (drawn) {
  drawn.addEventListener("input", keep);
  document.addEventListener("zoomed", (event) => { range = event.detail; keep(); });
}
