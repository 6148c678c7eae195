// What the page asks of the server that it came from.

export async function ask(view, path, body) {
  const options = { headers: { "X-Doppler-Token": view.token }, cache: "no-store", credentials: "omit", redirect: "error" };
  if (body) Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  if (body) options.headers["Content-Type"] = "application/json";
  const answer = await fetch(`${location.pathname}${path}`, options);
  const said = await answer.json();
  if (!answer.ok) throw new Error(said.error || `the server answers ${answer.status}`);
  if (said.refused) throw new Error(said.refused);
  return said;
}
