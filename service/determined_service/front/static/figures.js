// Figures that take the service a second: asked for once the page is there. Without this script, a link.
"use strict";

for (const place of document.querySelectorAll("[data-figures]")) {
  const address = new URL(place.dataset.figures, location.href);
  if (new URLSearchParams(location.search).has("figures")) continue;
  const link = place.innerHTML;
  place.textContent = "Computing the importance of hyperparameters and the rungs…";
  (async () => {
    try {
      const answer = await fetch(address);
      const found = answer.ok && new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(place.id);
      if (!found) throw new Error("no figures");
      place.replaceChildren(...found.childNodes);
    } catch { place.innerHTML = link; }
  })();
}
