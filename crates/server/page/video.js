// Live video of a stream: fragments of an MP4 file from a WebSocket, played by Media Source Extensions close to the newest frame.

import { h } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import htm from "htm";
import { streamPath } from "/page/api.js";

const html = htm.bind(h);

/** Seconds from the shown frame to the newest one: after a jump, and at most after several interruptions. */
const DISTANCE = 0.2;
const MAX_DISTANCE = 0.8;
/** Seconds in addition to this distance at which the video plays faster, and at which it jumps. */
const FAST_AFTER = 0.2;
const JUMP_AFTER = 1;
const FAST = 1.15;
/** Seconds of past video that the browser keeps. */
const KEPT = 5;
/** Number of frame times and results that are remembered. */
const MAX_TIMES = 600;
const MAX_RESULTS = 300;
/** Largest difference in seconds of the times of the same frame: less than half a frame at 120 frames per second. */
const SAME_FRAME = 0.004;
/** Milliseconds until a lost connection is opened again: the first time, and at most. The pause doubles until a video lasts for the longest one. */
const RETRY = 1000;
const MAX_RETRY = 30000;

/** The results of the last frames, by the number of the frame. */
export class Results {
  constructor() {
    this.byNumber = new Map();
    this.newest = null;
  }

  add(result) {
    this.newest = result;
    this.byNumber.set(result.frame, result);
    if (this.byNumber.size > MAX_RESULTS) this.byNumber.delete(this.byNumber.keys().next().value);
  }

  of(number) {
    return this.byNumber.get(number) ?? null;
  }
}

/**
 * Plays the video of a stream. `onFrame(number)` is called for each frame that the browser shows, with its number, or null if the number is
 * not known. `onFail(reason)` is called if there is no video. Returns a function that ends it.
 */
function play(video, name, onFrame, onFail) {
  const Source = window.ManagedMediaSource ?? window.MediaSource;
  let socket = null;
  let source = null;
  let buffer = null;
  let waiting = [];
  let times = [];
  let isEnded = false;
  let isFailed = false;
  let distance = DISTANCE;
  let retry = null;
  let pause = RETRY;
  // When the last file began, in milliseconds, if it belongs to the current connection.
  let begun = null;
  // Whether another connection could bring video that the browser plays.
  let canRetry = true;

  // The server encodes as long as the socket is open, so a failure closes it.
  const fail = (reason) => {
    socket?.close();
    if (isEnded || isFailed) return;
    isFailed = true;
    onFail(reason);
  };
  const edge = () => (video.buffered.length ? video.buffered.end(video.buffered.length - 1) : 0);
  const append = () => {
    if (isEnded || !buffer || buffer.updating || source.readyState !== "open") return;
    try {
      const first = buffer.buffered.length ? buffer.buffered.start(0) : 0;
      if (video.currentTime - first > 2 * KEPT) buffer.remove(first, video.currentTime - KEPT);
      else if (waiting.length) buffer.appendBuffer(waiting.shift());
    } catch (error) {
      fail(`the browser refuses the video: ${error.message}`);
    }
  };
  const begin = (codec) => {
    const type = `video/mp4; codecs="${codec}"`;
    waiting = [];
    times = [];
    buffer = null;
    if (!Source || !Source.isTypeSupported(type)) {
      canRetry = false;
      return fail(`the browser cannot play ${codec}`);
    }
    isFailed = false;
    begun = performance.now();
    const mine = new Source();
    source = mine;
    // Needed by browsers on phones; others ignore it.
    video.disableRemotePlayback = true;
    const address = URL.createObjectURL(mine);
    video.src = address;
    mine.addEventListener("sourceopen", () => {
      URL.revokeObjectURL(address);
      if (isEnded || mine !== source) return;
      buffer = mine.addSourceBuffer(type);
      buffer.addEventListener("updateend", append);
      append();
    }, { once: true });
    return undefined;
  };
  const receive = ({ data }) => {
    if (typeof data !== "string") {
      if (isFailed) return;
      waiting.push(new Uint8Array(data));
      append();
      return;
    }
    const message = JSON.parse(data);
    if (message.error) fail(message.error);
    else if (message.begin) begin(message.begin);
    else {
      times.push({ time: message.time_us / 1e6, number: message.frame });
      if (times.length > MAX_TIMES) times.shift();
    }
  };
  const connect = () => {
    if (isEnded) return;
    begun = null;
    const protocol = location.protocol === "https:" ? "wss" : "ws";
    socket = new WebSocket(`${protocol}://${location.host}${streamPath(name, "/video")}`);
    socket.binaryType = "arraybuffer";
    socket.addEventListener("message", receive);
    socket.addEventListener("close", () => {
      if (isEnded || !canRetry) return;
      if (begun !== null && performance.now() - begun > MAX_RETRY) pause = RETRY;
      retry = setTimeout(connect, pause);
      pause = Math.min(2 * pause, MAX_RETRY);
    });
  };
  const keepUp = setInterval(() => {
    if (!video.buffered.length) return;
    const behind = edge() - video.currentTime;
    const isBefore = video.currentTime < video.buffered.start(video.buffered.length - 1);
    if (isBefore || behind > distance + JUMP_AFTER) video.currentTime = Math.max(video.buffered.start(video.buffered.length - 1), edge() - distance);
    video.playbackRate = behind > distance + FAST_AFTER ? FAST : 1;
    if (video.paused) video.play().catch(() => {});
  }, 100);
  // A video that has to wait for frames keeps a larger distance from then on.
  const wait = () => { distance = Math.min(MAX_DISTANCE, distance + 0.1); };
  const broken = () => fail(`the browser cannot decode the video: ${video.error?.message ?? "unknown reason"}`);
  video.addEventListener("waiting", wait);
  video.addEventListener("error", broken);

  const numberAt = (time) => {
    for (let idx = times.length - 1; idx >= 0; idx -= 1) if (Math.abs(times[idx].time - time) <= SAME_FRAME) return times[idx].number;
    return null;
  };
  let request = null;
  const hasCallback = "requestVideoFrameCallback" in HTMLVideoElement.prototype;
  const next = (step) => (hasCallback ? video.requestVideoFrameCallback(step) : requestAnimationFrame(step));
  const step = (now, frame) => {
    if (isEnded) return;
    request = next(step);
    if (video.readyState >= 2) onFrame(numberAt(frame?.mediaTime ?? video.currentTime));
  };
  request = next(step);
  connect();

  return () => {
    isEnded = true;
    clearTimeout(retry);
    clearInterval(keepUp);
    video.removeEventListener("waiting", wait);
    video.removeEventListener("error", broken);
    if (hasCallback) video.cancelVideoFrameCallback(request);
    else cancelAnimationFrame(request);
    socket?.close();
    video.removeAttribute("src");
    video.load();
  };
}

/** The live video of a stream. MJPEG shows the first pictures, and all of them if there is no video. `onFrame` is that of `play`. */
export function LiveVideo({ name, onFrame }) {
  const video = useRef(null);
  const current = useRef(onFrame);
  current.current = onFrame;
  const [isShown, setShown] = useState(false);
  const [failure, setFailure] = useState(null);
  useEffect(() => {
    const show = (number) => {
      setShown(true);
      setFailure(null);
      current.current(number);
    };
    const fail = (reason) => {
      setShown(false);
      setFailure(reason);
      current.current(null);
    };
    return play(video.current, name, show, fail);
  }, [name]);
  return html`
    <video ref=${video} muted autoplay playsinline class=${isShown ? "shown" : ""} aria-label=${`Live video of ${name}`}></video>
    ${!isShown && html`<img src=${streamPath(name, "/mjpeg?boxes=false&width=1280")} alt=${`Live picture of ${name}`} />`}
    ${failure && html`<span class="no-video" role="status">Pictures instead of video: ${failure}</span>`}`;
}
