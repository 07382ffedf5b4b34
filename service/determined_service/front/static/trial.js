// Trials and logs: the end of a log stays in sight while it grows, and the address keeps how curves are drawn.
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

for (const form of document.querySelectorAll("form[data-kept]")) {
  form.addEventListener("input", () => {
    history.replaceState(null, "", `${location.pathname}?${new URLSearchParams(new FormData(form))}`);
  });
}
