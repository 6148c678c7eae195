// A page that a server shows: asks it from time to time for new curves and for changes made elsewhere.

import { h } from "./dom.js";
import { ask } from "./server.js";

export function live(data, parts) {
  const { view } = data;
  if (!view) return null;
  const banner = h("p", { class: "banner", role: "status", hidden: !view.message }, view.message || "");
  let seen = view.runs;
  const poll = async () => {
    try {
      const revision = data.view.whatIf ? data.view.whatIf.revision : 0;
      const said = await ask(view, `state?since=${revision}&runs=${encodeURIComponent(seen)}`);
      banner.hidden = !view.message;
      banner.textContent = view.message || "";
      if (said.runs) {
        seen = said.seen;
        data.runs = said.runs;
        parts.training?.refresh();
      }
      if (said.whatIf && parts.whatIf && data.view.whatIf.revision === revision) { if (parts.whatIf.take(said)) parts.whatIf.said(); }
    } catch (error) {
      banner.hidden = false;
      banner.textContent = error instanceof TypeError ? "The server does not answer: start `dop view` again. What is shown stays." : error.message;
    }
    setTimeout(poll, view.poll_ms);
  };
  return { banner, start: () => setTimeout(poll, view.poll_ms) };
}
