// The page of one stream: live picture with boxes, charts, events, and its settings.

import { h } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import htm from "htm";
import uPlot from "uplot";
import { send, streamPath, useEvents, usePolled } from "/page/api.js";
import { EventTable, Parameters, filled, objectsText } from "/page/app.js";
import { Crops, PlaceEvents, useCrops, usePlaceEvents } from "/page/crops.js";
import { LiveVideo, Results } from "/page/video.js";
import { PlacesEditor, PlacesLayer, placesOf, useDrawing } from "/page/zones.js";

const html = htm.bind(h);

const COLORS = ["#ffcc00", "#00c2ff", "#ff5d8f", "#7ddc5a", "#ff9140", "#b28dff", "#4de0c0", "#ff5050"];
/** Points of the charts: two minutes. */
const MAX_POINTS = 120;

/** Draws the results of a frame over the picture. */
function draw(canvas, result, layers) {
  const box = canvas.getBoundingClientRect();
  const ratio = window.devicePixelRatio || 1;
  canvas.width = box.width * ratio;
  canvas.height = box.height * ratio;
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, canvas.width, canvas.height);
  if (!result) return;
  context.lineWidth = 2 * ratio;
  context.font = `${13 * ratio}px system-ui, sans-serif`;
  for (const object of result.objects) {
    const detection = object.detection;
    const { x_min: left, y_min: top, x_max: right, y_max: bottom } = detection.bounding_box;
    const [x, y] = [left * canvas.width, top * canvas.height];
    const [width, height] = [(right - left) * canvas.width, (bottom - top) * canvas.height];
    const color = COLORS[(detection.label_id ?? 0) % COLORS.length];
    context.strokeStyle = color;
    if (layers.boxes) context.strokeRect(x, y, width, height);
    for (const point of (layers.boxes && detection.keypoints) || []) {
      context.fillStyle = color;
      context.fillRect(point.x * canvas.width - 2 * ratio, point.y * canvas.height - 2 * ratio, 4 * ratio, 4 * ratio);
    }
    if (layers.labels) {
      const attributes = Object.values(object).map((value) => value?.label).filter((label) => label && label !== detection.label);
      const number = object.id === null || object.id === undefined ? "" : ` ${object.id}`;
      const text = [`${detection.label ?? detection.label_id}${number}`, ...attributes].join(" ");
      const wide = context.measureText(text).width + 6 * ratio;
      const above = Math.max(0, y - 18 * ratio);
      context.fillStyle = color;
      context.fillRect(x, above, wide, 18 * ratio);
      context.fillStyle = "#000";
      context.fillText(text, x + 3 * ratio, above + 13 * ratio);
    }
  }
}

function Live({ name, isRunning, isDrawing, onResult, children }) {
  const canvas = useRef(null);
  const results = useRef(null);
  results.current ??= new Results();
  /** Number of the frame that the video shows; null if it is not known, or there is no video. */
  const shown = useRef(null);
  const [layers, setLayers] = useState({ boxes: true, labels: true, places: true });
  const current = useRef(layers);
  current.current = layers;
  const [nDropped, setDropped] = useState(0);
  const [isHidden, setHidden] = useState(document.hidden);
  const showFrame = useRef(() => {});
  useEvents(streamPath(name, "/results/live"), {
    result: (result) => {
      results.current.add(result);
      onResult(result);
    },
    dropped: ({ results }) => setDropped((before) => before + results),
  });
  useEffect(() => {
    let frame = null;
    let drawn = null;
    /** Draws the results of the frame that is shown, or the newest ones. */
    const update = () => {
      const result = shown.current === null ? results.current.newest : results.current.of(shown.current) ?? drawn?.[0] ?? null;
      const state = [result, current.current, canvas.current?.clientWidth, canvas.current?.clientHeight];
      if (canvas.current && (!drawn || state.some((value, idx) => value !== drawn[idx]))) {
        draw(canvas.current, result, current.current);
        canvas.current.dataset.frame = result?.frame ?? "";
        drawn = state;
      }
    };
    const step = () => {
      update();
      frame = requestAnimationFrame(step);
    };
    frame = requestAnimationFrame(step);
    showFrame.current = (number) => {
      shown.current = number;
      update();
    };
    const hide = () => setHidden(document.hidden);
    document.addEventListener("visibilitychange", hide);
    return () => {
      cancelAnimationFrame(frame);
      document.removeEventListener("visibilitychange", hide);
    };
  }, []);
  const layer = (key, text) => html`<label class="check"><input type="checkbox" name=${key} checked=${layers[key]}
    onChange=${(event) => setLayers({ ...layers, [key]: event.target.checked })} /><span>${text}</span></label>`;
  return html`<div class="live">
      ${isRunning && !isHidden && html`<${LiveVideo} name=${name} onFrame=${(number) => showFrame.current(number)} />`}
      <canvas ref=${canvas} role="img" aria-label=${`Objects in ${name}`}></canvas>
      ${(layers.places || isDrawing) && children}
    </div>
    <div class="row">${layer("boxes", "Boxes")}${layer("labels", "Labels")}${children && layer("places", "Lines and zones")}
      ${nDropped > 0 && html`<span class="facts">${nDropped} results left out, because this browser is too slow</span>`}</div>`;
}

/** A chart of the last two minutes. */
function Chart({ title, series, points }) {
  const place = useRef(null);
  const chart = useRef(null);
  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const axis = { stroke: style.getPropertyValue("color") || "#888", grid: { stroke: "#8884" } };
    const options = {
      title,
      width: place.current.clientWidth || 400,
      height: 170,
      axes: [axis, axis],
      series: [{}, ...series.map((label, idx) => ({ label, stroke: COLORS[(idx + 1) % COLORS.length], width: 2 }))],
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
    };
    chart.current = new uPlot(options, [[], ...series.map(() => [])], place.current);
    const resize = () => chart.current.setSize({ width: place.current.clientWidth || 400, height: 170 });
    window.addEventListener("resize", resize);
    return () => {
      window.removeEventListener("resize", resize);
      chart.current.destroy();
    };
  }, [title, series.join("\n")]);
  useEffect(() => {
    chart.current.setData([points.map(({ time }) => time), ...series.map((label) => points.map(({ values }) => values[label] ?? 0))]);
  }, [points, series.join("\n")]);
  return html`<div ref=${place}></div>`;
}

function ChangeForm({ stream, pipeline, onChanged }) {
  const [input, setInput] = useState(stream.input);
  const [values, setValues] = useState(Object.fromEntries(Object.entries(stream.parameters ?? {}).map(([name, value]) => [name, `${value}`])));
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    setError(null);
    const parameters = { ...Object.fromEntries(Object.keys(stream.parameters ?? {}).map((name) => [name, null])), ...filled(values) };
    try {
      await send("PATCH", streamPath(stream.name), { input, parameters });
      onChanged();
    } catch (failure) {
      setError(failure.message);
    }
  };
  return html`<details class="card"><summary>Change</summary><form onSubmit=${submit}>
    <label><span>Input</span><input name="input" value=${input} onInput=${(event) => setInput(event.target.value)} required spellcheck="false" /></label>
    <${Parameters} pipeline=${pipeline} values=${values} setValues=${setValues} />
    <p class="facts">The stream restarts only if it cannot continue with the change.</p>
    <div class="row"><button class="main" type="submit">Change</button></div>
    <div class="error" role="alert">${error}</div>
  </form></details>`;
}

export function StreamPage({ name, server }) {
  const [stream, error, poll] = usePolled(streamPath(name), 1000);
  const [events, , pollEvents] = usePolled(`/api/events?limit=30&stream=${encodeURIComponent(name)}`, 5000);
  const [pipelines] = usePolled("/api/pipelines", 60000);
  const [points, setPoints] = useState([]);
  const editor = useDrawing();
  const crops = useCrops(name);
  const [placeEvents, addEvents] = usePlaceEvents(crops.ofTrack);
  const [failure, setFailure] = useState(null);
  const dialog = useRef(null);
  useEffect(() => {
    if (!stream) return;
    const values = { ...stream.objects, "frames per second": stream.fps, "latency in ms": stream.latency_ms ?? 0 };
    setPoints((before) => [...before, { time: Date.now() / 1000, values }].slice(-MAX_POINTS));
  }, [stream]);
  const act = (method, rest, done) => async () => {
    setFailure(null);
    try {
      await send(method, streamPath(name, rest));
      done();
    } catch (reason) {
      setFailure(reason.message);
    }
  };
  if (error?.status === 404) return html`<h1>${name}</h1><p>There is no such stream. <a href="#/">All streams</a></p>`;
  if (!stream) return html`<h1>${name}</h1><p>${error ? error.message : "Loading"}</p>`;
  const pipeline = pipelines?.pipelines.find((known) => known.name === stream.pipeline);
  const places = placesOf(stream, pipeline);
  const labels = [...new Set(points.flatMap(({ values }) => Object.keys(values)))].filter((label) => label !== "frames per second" && label !== "latency in ms").sort();
  const fact = (title, value) => html`<tr><th scope="row">${title}</th><td>${value}</td></tr>`;
  const lost = (all) => (all.length ? all.map(({ element, reason, frames }) => `${frames} by ${element} (${reason})`).join(", ") : "none");
  return html`
    <h1>${name} <span class=${`state ${stream.state}`} role="status">${stream.state}</span></h1>
    ${error && html`<p class="error" role="alert">${error.message}</p>`}
    ${stream.error && html`<p class="error">${stream.error}</p>`}
    <div class="columns">
      <div>
        <${Live} name=${name} isRunning=${stream.state === "running"} isDrawing=${!!editor.drawing} onResult=${addEvents}>
          ${places && html`<${PlacesLayer} places=${places.all} counts=${stream.places} editor=${editor} />`}
        <//>
        ${places && html`<${PlacesEditor} stream=${stream} places=${places} editor=${editor} isOperator=${server.role === "operator"} onChanged=${() => { poll(); pollEvents(); }} />`}
        <div class="card" style="margin-top:1rem">
          <${Chart} title="Objects" series=${labels.length ? labels : ["objects"]} points=${points} />
          <${Chart} title="Speed" series=${["frames per second", "latency in ms"]} points=${points} />
        </div>
      </div>
      <div style="display:grid;gap:1rem">
        <div class="card"><table><tbody>
          ${fact("Input", stream.input)}${fact("Pipeline", stream.pipeline)}${fact("Objects now", objectsText(stream.objects))}
          ${fact("Frames", stream.frames)}${fact("Frames per second", stream.fps.toFixed(1))}
          ${fact("Latency", stream.latency_ms === null ? "unknown" : `${stream.latency_ms.toFixed(1)} ms on average`)}
          ${fact("Dropped", lost(stream.dropped))}${fact("Skipped", lost(stream.skipped))}${fact("Failed", stream.failed)}${fact("Restarts of the source", stream.restarts)}
        </tbody></table></div>
        ${server.role === "operator" && html`
          <div class="row">
            <button onClick=${act("POST", "/restart", poll)}>Restart</button>
            <button class="danger" onClick=${() => dialog.current.showModal()}>Remove</button>
          </div>
          <div class="error" role="alert">${failure}</div>
          <dialog ref=${dialog} aria-label="Remove the stream">
            <p>Remove the stream ${name}? Its settings are deleted.</p>
            <form method="dialog" class="row">
              <button class="danger" id="remove" onClick=${act("DELETE", "", () => { location.hash = "#/"; })}>Remove</button>
              <button>Keep</button>
            </form>
          </dialog>
          <${ChangeForm} stream=${stream} pipeline=${pipeline} onChanged=${() => { poll(); pollEvents(); }} />`}
        <${Crops} ...${crops} />
        <${PlaceEvents} events=${placeEvents} />
        <div class="card"><h2>Events</h2><${EventTable} events=${[...(events?.events ?? [])].reverse()} /></div>
      </div>
    </div>`;
}
