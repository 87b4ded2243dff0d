// Pictures of the objects that a stream has found, and what tracked objects did at lines and in zones.

import { h } from "preact";
import { useMemo, useState } from "preact/hooks";
import htm from "htm";
import { streamPath, usePolled } from "/page/api.js";

const html = htm.bind(h);

/** Milliseconds between requests for the list of crops. */
const INTERVAL = 1000;
/** Number of crops and of events that are shown. */
const MAX_CROPS = 24;
const MAX_EVENTS = 30;

/** Hides a picture that the server no longer has, until another one is loaded in its place. */
const hide = ({ target }) => { target.hidden = true; };
const show = ({ target }) => { target.hidden = false; };

const title = ({ label, track }) => (track === null ? label : `${label} ${track}`);

/** The latest crops, and a function that returns the crop of a track. Nothing is cut while the page is hidden. */
export function useCrops(name) {
  const [list, error] = usePolled(streamPath(name, `/crops?limit=${MAX_CROPS}`), INTERVAL);
  // The newest tracks come first, so a picture keeps its place while its object is seen.
  const crops = useMemo(() => [...(list?.crops ?? [])].sort((a, b) => (b.track ?? 0) - (a.track ?? 0)), [list]);
  return { crops, error, ofTrack: (track) => crops.find((crop) => crop.track === track) ?? null };
}

export function Crops({ crops, error }) {
  return html`<div class="card" id="crops"><h2>Objects</h2>
    ${error && html`<p class="error" role="alert">${error.message}</p>`}
    ${!error && crops.length === 0 && html`<p class="facts">No object was found since this page was opened.</p>`}
    <ul class="crops">${crops.map((crop) => html`<li key=${crop.track === null ? `crop ${crop.id}` : crop.track}>
      <img src=${crop.picture} alt=${title(crop)} onError=${hide} onLoad=${show} />
      <div class="facts">${title(crop)}, ${crop.confidence === null ? "" : `${Math.round(crop.confidence * 100)} %, `}${new Date(crop.time_ms).toLocaleTimeString()}</div>
    </li>`)}</ul></div>`;
}

/** What tracked objects did at lines and in zones since the page was opened: [events, add the events of a result]. */
export function usePlaceEvents(ofTrack) {
  const [events, setEvents] = useState([]);
  const add = (result) => {
    if (!result.events?.length) return;
    const time = new Date(result.time).toLocaleTimeString();
    const added = result.events.map((event, idx) => ({ ...event, key: `${result.frame}.${idx}`, time, picture: ofTrack(event.id)?.picture }));
    setEvents((before) => [...added.reverse(), ...before].slice(0, MAX_EVENTS));
  };
  return [events, add];
}

/** The text of an event, such as "line crossed: gate, in". */
const textOf = ({ event, place, direction }) => `${event.replace("-", " ")}: ${place}${direction ? `, ${direction}` : ""}`;

export function PlaceEvents({ events }) {
  if (events.length === 0) return null;
  return html`<div class="card" id="place-events"><h2>At lines and in zones</h2><table>
    <thead><tr><th scope="col">Time</th><th scope="col">Object</th><th scope="col">Event</th><th scope="col">Picture</th></tr></thead>
    <tbody>${events.map((event) => html`<tr key=${event.key}>
      <td>${event.time}</td><td>${event.label ?? ""} ${event.id}</td><td>${textOf(event)}</td>
      <td>${event.picture && html`<img class="event-crop" src=${event.picture} alt=${`${event.label ?? "object"} ${event.id}`}
        onError=${hide} onLoad=${show} />`}</td>
    </tr>`)}</tbody></table></div>`;
}
