// The page of `roiflow serve`: overview, a page per stream, events, settings.

import { h, render } from "preact";
import { useEffect, useState } from "preact/hooks";
import htm from "htm";
import { send, streamPath, useEvents, usePolled } from "/page/api.js";
import { NodesPage } from "/page/nodes.js";
import { StreamPage } from "/page/stream.js";

const html = htm.bind(h);

/** Shows a picture of a stream at two frames per second, while it is on the screen. */
function Picture({ name, isRunning }) {
  const [shown, setShown] = useState(null);
  const [place, setPlace] = useState(null);
  useEffect(() => {
    if (!place || !isRunning) return undefined;
    let isSeen = false;
    let isEnded = false;
    let timer = null;
    let address = null;
    const next = async () => {
      const begin = performance.now();
      if (isSeen && !document.hidden) {
        try {
          const answer = await fetch(streamPath(name, "/picture?width=480"));
          if (answer.ok && !isEnded) {
            const before = address;
            address = URL.createObjectURL(await answer.blob());
            setShown(address);
            if (before) setTimeout(() => URL.revokeObjectURL(before), 1000);
          }
        } catch {
          // The state of the stream, or the error at the top of the page, says why.
        }
      }
      if (!isEnded) timer = setTimeout(next, Math.max(100, 500 - (performance.now() - begin)));
    };
    const observer = new IntersectionObserver((entries) => { isSeen = entries.at(-1).isIntersecting; });
    observer.observe(place);
    timer = setTimeout(next, 50);
    return () => {
      isEnded = true;
      clearTimeout(timer);
      observer.disconnect();
      if (address) URL.revokeObjectURL(address);
      setShown(null);
    };
  }, [name, isRunning, place]);
  return html`<div class="picture" ref=${setPlace}>
    ${shown ? html`<img src=${shown} alt=${`Newest frame of ${name}`} />` : html`<span>no picture</span>`}
  </div>`;
}

/** The objects of the newest frame as text. */
export function objectsText(objects) {
  const all = Object.entries(objects);
  return all.length ? all.map(([label, count]) => `${count} ${label}`).join(", ") : "no objects";
}

function Tile({ stream }) {
  return html`<li class="tile" data-stream=${stream.name}>
    <a href=${`#/streams/${encodeURIComponent(stream.name)}`}>
      <${Picture} name=${stream.name} isRunning=${stream.state === "running"} />
      <div class="text">
        <div class="row"><span class="name">${stream.name}</span><span class=${`state ${stream.state}`}>${stream.state}</span></div>
        <div class="facts">${stream.fps.toFixed(1)} fps, ${stream.missed} missed${stream.latency_ms === null ? "" : `, ${stream.latency_ms.toFixed(1)} ms`}</div>
        <div class="facts">${objectsText(stream.objects)}${stream.node ? `, on ${stream.node}` : ""}</div>
        ${stream.error && html`<div class="error">${stream.error}</div>`}
      </div>
    </a>
  </li>`;
}

/** A form field per parameter of a pipeline. */
export function Parameters({ pipeline, values, setValues }) {
  return (pipeline?.parameters ?? []).map(({ name, type, help, required, default: usual }) => html`<label key=${name}>
    <span>${name}${required ? " (required)" : ""}</span>
    <input name=${`parameter-${name}`} value=${values[name] ?? ""} placeholder=${usual ?? type} required=${required}
      onInput=${(event) => setValues({ ...values, [name]: event.target.value })} />
    <span class="facts">${help}</span>
  </label>`);
}

/** Leaves out fields without a value. */
export const filled = (values) => Object.fromEntries(Object.entries(values).filter(([, value]) => value !== ""));

function AddForm({ server, onAdded }) {
  const [pipelines] = usePolled("/api/pipelines", 60000);
  const [form, setForm] = useState({ name: "", input: "", pipeline: "", loop: false });
  const [values, setValues] = useState({});
  const [error, setError] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const [found, setFound] = useState(null);
  const all = pipelines?.pipelines ?? [];
  const chosen = all.find(({ name }) => name === form.pipeline) ?? all[0];
  const set = (name) => (event) => setForm({ ...form, [name]: event.target.type === "checkbox" ? event.target.checked : event.target.value });
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await send("POST", "/api/streams", { ...form, pipeline: chosen?.name ?? "", parameters: filled(values) });
      setForm({ ...form, name: "", input: "" });
      setValues({});
      onAdded();
    } catch (failure) {
      setError(failure.message);
    }
    setBusy(false);
  };
  const probe = async () => {
    setBusy(true);
    setError(null);
    setFound("The input is being opened. This may take ten seconds.");
    try {
      const { width, height, codec, fps } = await send("POST", "/api/probe", { input: form.input });
      const rate = fps === null ? "an unknown number of" : fps.toFixed(1).replace(/\.0$/, "");
      setFound(`${width} × ${height} pixels, ${codec ?? "not compressed"}, ${rate} frames per second`);
    } catch (failure) {
      setFound(null);
      setError(failure.message);
    }
    setBusy(false);
  };
  const inputHelp = `An address (${server.schemes.join(", ")})${server.has_media ? ", a file of the media folder" : ""}, or test:`;
  return html`<section class="card" aria-labelledby="add-title">
    <h2 id="add-title">Add a stream</h2>
    <form id="add" onSubmit=${submit}>
      <label><span>Name</span><input name="name" value=${form.name} onInput=${set("name")} required maxlength="100" autocomplete="off" /></label>
      <label><span>Input</span><input name="input" value=${form.input} onInput=${set("input")} required placeholder="rtsp://camera/stream" autocomplete="off" spellcheck="false" />
        <span class="facts">${inputHelp}</span></label>
      <label><span>Pipeline</span><select name="pipeline" value=${chosen?.name} onChange=${set("pipeline")}>
        ${all.map(({ name, description }) => html`<option key=${name} value=${name}>${name}: ${description}</option>`)}
      </select></label>
      <details><summary>Parameters</summary><${Parameters} pipeline=${chosen} values=${values} setValues=${setValues} /></details>
      <label class="check"><input type="checkbox" name="loop" checked=${form.loop} onChange=${set("loop")} /><span>Start a file again at its end</span></label>
      <div class="row">
        <button class="main" type="submit" disabled=${isBusy}>Add</button>
        <button type="button" id="probe" onClick=${probe} disabled=${isBusy || !form.input}>What does this input send?</button>
      </div>
      <div role="status" id="found">${found}</div>
      <div class="error" role="alert">${error}</div>
    </form>
  </section>`;
}

function Overview({ server }) {
  const [list, error, poll] = usePolled("/api/streams", 1000);
  return html`
    <h1>Streams</h1>
    ${error && html`<p class="error" role="alert">${error.message}</p>`}
    ${list && !list.streams.length && html`<p>There are no streams yet.</p>`}
    <ul class="tiles">${(list?.streams ?? []).map((stream) => html`<${Tile} key=${stream.name} stream=${stream} />`)}</ul>
    ${server.role === "operator" && html`<${AddForm} server=${server} onAdded=${poll} />`}`;
}

/** A table of events. */
export function EventTable({ events }) {
  return html`<table>
    <thead><tr><th scope="col">Time</th><th scope="col">Stream</th><th scope="col">Event</th><th scope="col">Details</th></tr></thead>
    <tbody>${events.map(({ id, time_ms, stream, kind, message }) => html`<tr key=${id}>
      <td>${new Date(time_ms).toLocaleTimeString()}</td><td>${stream}</td><td>${kind}</td><td>${message}</td>
    </tr>`)}</tbody>
  </table>`;
}

function EventsPage() {
  const [list, error, poll] = usePolled("/api/events?limit=200", 30000);
  useEvents("/api/events/live", { event: poll });
  return html`<h1>Events</h1>
    ${error && html`<p class="error" role="alert">${error.message}</p>`}
    <div class="card"><${EventTable} events=${[...(list?.events ?? [])].reverse()} /></div>`;
}

function setTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  localStorage.setItem("theme", theme);
}

function Settings({ server, onLogout }) {
  const [theme, choose] = useState(localStorage.getItem("theme") ?? "system");
  const logout = async () => {
    await send("POST", "/api/logout");
    onLogout();
  };
  return html`<h1>Settings</h1>
    <section class="card"><form>
      <label><span>Colors</span><select name="theme" value=${theme} onChange=${(event) => { choose(event.target.value); setTheme(event.target.value); }}>
        <option value="system">as the system</option><option value="light">light</option><option value="dark">dark</option>
      </select></label>
    </form></section>
    <section class="card" style="margin-top:1rem"><h2>Server</h2>
      <p>roiflow ${server.version}. You are ${server.role}. At most ${server.max_streams} streams.</p>
      <p><a href="/api/openapi.json">Description of the REST API</a>, <a href="/metrics">metrics</a></p>
      ${server.needs_token && html`<button onClick=${logout}>Log out</button>`}
    </section>`;
}

function Login({ onLogin }) {
  const [token, setToken] = useState("");
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    try {
      await send("POST", "/api/login", { token });
      onLogin();
    } catch (failure) {
      setError(failure.message);
    }
  };
  return html`<h1>Log in</h1><form class="card" onSubmit=${submit}>
    <label><span>Token</span><input type="password" name="token" value=${token} onInput=${(event) => setToken(event.target.value)} required autocomplete="current-password" />
      <span class="facts">roiflow serve --create-token operator prints one</span></label>
    <div class="row"><button class="main" type="submit">Log in</button></div>
    <div class="error" role="alert">${error}</div>
  </form>`;
}

function App() {
  const [server, error, poll] = usePolled("/api/server", 10000);
  const [route, setRoute] = useState(location.hash);
  useEffect(() => {
    const change = () => setRoute(location.hash);
    window.addEventListener("hashchange", change);
    return () => window.removeEventListener("hashchange", change);
  }, []);
  const link = (target, text) => html`<a href=${target} aria-current=${(route || "#/") === target ? "page" : undefined}>${text}</a>`;
  const name = route.startsWith("#/streams/") ? decodeURIComponent(route.slice(10)) : null;
  let content = null;
  if (server && !server.role) content = html`<${Login} onLogin=${poll} />`;
  else if (server && name) content = html`<${StreamPage} key=${name} name=${name} server=${server} />`;
  else if (server && route === "#/nodes") content = html`<${NodesPage} server=${server} />`;
  else if (server && route === "#/events") content = html`<${EventsPage} />`;
  else if (server && route === "#/settings") content = html`<${Settings} server=${server} onLogout=${poll} />`;
  else if (server) content = html`<${Overview} server=${server} />`;
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the content</a>
    <header><strong>roiflow</strong><nav aria-label="Pages">${link("#/", "Streams")}${server?.node && link("#/nodes", "Nodes")}${link("#/events", "Events")}${link("#/settings", "Settings")}</nav></header>
    <main id="main" tabindex="-1">
      ${error && html`<p class="error" role="alert">${error.message}</p>`}
      ${content}
    </main>`;
}

setTheme(localStorage.getItem("theme") ?? "system");
render(html`<${App} />`, document.getElementById("app"));
