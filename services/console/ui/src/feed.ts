// The stream of messages from `turnbuckle console`, found again whenever it ends.
import { decode, Frames, type Message } from "./decode";

const SILENCE_MS = 8_000;
const AGAIN_MS = [300, 1_000, 2_000];
export type Link = "connecting" | "live" | "no-bus" | "lost" | "refused";

/** The key stands in the address behind the #, which browsers send to nobody. */
export function takeKey(): string {
  const given = new URLSearchParams(location.hash.slice(1)).get("key");
  if (given !== null) {
    sessionStorage.setItem("key", given);
    history.replaceState(null, "", location.pathname);
  }
  return given ?? sessionStorage.getItem("key") ?? "";
}

export async function follow(key: string, onMessage: (message: Message) => void, onLink: (link: Link) => void): Promise<never> {
  for (let attempt = 0; ; attempt += 1) {
    const heard = await readOnce(key, onMessage, onLink);
    if (heard) attempt = 0;
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS[Math.min(attempt, AGAIN_MS.length - 1)]));
  }
}

async function readOnce(key: string, onMessage: (message: Message) => void, onLink: (link: Link) => void): Promise<boolean> {
  const abort = new AbortController();
  let heard = false;
  let timer = 0;
  const watch = () => {
    clearTimeout(timer);
    timer = setTimeout(() => abort.abort(), SILENCE_MS);
  };
  watch();
  try {
    const response = await fetch("/stream", { headers: { Authorization: `Bearer ${key}` }, signal: abort.signal });
    if (response.status === 401) {
      onLink("refused");
      return false;
    }
    if (!response.ok || response.body === null) throw new Error(`status ${response.status}`);
    const reader = response.body.getReader();
    const frames = new Frames();
    onMessage({ type: "console.Joined" }); // what is known may be old: the hub tells it all again
    for (;;) {
      const { done, value } = await reader.read();
      if (done) throw new Error("the stream has ended");
      heard = true;
      watch();
      for (const data of frames.push(value)) take(data, onMessage, onLink);
    }
  } catch {
    onLink("lost");
    return heard;
  } finally {
    clearTimeout(timer);
    abort.abort();
  }
}

function take(data: Uint8Array, onMessage: (message: Message) => void, onLink: (link: Link) => void): void {
  let message: Message;
  try {
    message = decode(data);
  } catch {
    return; // not one of ours: anyone may publish anything
  }
  if (message.type === "console.Beat") onLink(message.connected === true ? "live" : "no-bus");
  onMessage(message);
}
