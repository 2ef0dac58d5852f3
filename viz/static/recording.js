// A recording as a History: from a .kvtrace or .kvtrace.gz that was dropped on the page, streamed by the server, or
// embedded in a page. It grows while it is read, so that a viewer can look at its beginning already.

const SCHEMA = 1; // of engine/events.py
const CHUNK_CHARACTERS = 1 << 19; // some 2,500 events
const MOST_BLOCKS = 1 << 20;
const MOST_TOKENS_IN_BLOCK = 4096;
const CHUNKS_BEFORE_LARGER = 64; // so that a recording of any length has few pictures to keep,
const BLOCKS_BEFORE_LARGER = 1 << 20; // or, where the pictures are small, so many blocks in them

/**
 * Reads a stream of bytes into a History; `told(history)` is called as it grows, the first time with the header alone.
 * `eager`: take in each event as it comes, for a recording that is being made. Rejects with a message for people if it
 * is no recording, or broken; what came before is in the history then.
 */
async function readRecording(stream, told, { eager = false } = {}) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let history = null;
  let unreadable = null; // why the bytes end before the file does
  for (let done = false; !done;) {
    const part = await reader.read().catch(error => {
      unreadable = error;
      return { done: true };
    });
    done = part.done;
    rest += part.value ?? "";
    if (!history) {
      const end = rest.indexOf("\n");
      if (end < 0 && !done && rest.length < 1 << 24) continue;
      history = beginRecording(end < 0 ? rest : rest.slice(0, end));
      history.growing = true;
      rest = end < 0 ? "" : rest.slice(end + 1);
      told(history);
    }
    const alike = Math.max(CHUNKS_BEFORE_LARGER, BLOCKS_BEFORE_LARGER / history.header.num_blocks);
    const chunk = CHUNK_CHARACTERS << Math.floor(history.chunks.length / alike);
    const enough = eager || done || rest.length >= chunk;
    const end = enough ? rest.lastIndexOf("\n") + 1 : 0;
    if (end === 0) continue;
    takeLines(history, rest.slice(0, end), eager);
    rest = rest.slice(end);
    told(history);
  }
  history.growing = false;
  told(history);
  if (unreadable) throw new Error(`the file cannot be read on after event ${history.newest}: ${unreadable.message}`);
  if (rest.trim()) throw new Error(`the recording is cut off after event ${history.newest}; what came before is shown`);
  return history;
}

function takeLines(history, text, eager) {
  try {
    const events = parseLines(text);
    if (!eager) history.appendText(text, events);
    else for (const event of events) history.append(event);
  } catch (error) {
    history.growing = false;
    throw new Error(`the recording is damaged after event ${history.newest}: ${error.message}`);
  }
}

function beginRecording(line) {
  let header;
  try {
    header = { model: {}, kernel: {}, config: {}, ...JSON.parse(line) };
  } catch {
    header = {};
  }
  const { num_blocks, block_size, base } = header;
  const parts = [header.kinds, header.model, header.kernel, header.config];
  if (!num_blocks || !block_size || parts.some(part => typeof part !== "object" || part === null)) {
    throw new Error("this file does not begin with the header of a .kvtrace: is it a recording of Pagelens?");
  }
  const within = (number, most) => Number.isInteger(number) && number >= 1 && number <= most;
  if (!within(num_blocks, MOST_BLOCKS) || !within(block_size, MOST_TOKENS_IN_BLOCK)) {
    throw new Error(`the header claims ${num_blocks} blocks of ${block_size} tokens; this page shows at most `
      + `${MOST_BLOCKS.toLocaleString("en")} blocks of ${MOST_TOKENS_IN_BLOCK}: if there were fewer, the file is `
      + "damaged");
  }
  if (header.schema > SCHEMA) {
    throw new Error(`the recording has schema ${header.schema}, this page reads up to ${SCHEMA}: open it with a newer Pagelens`);
  }
  if (base && !["seq", "ref_count", "state", "sequences"].every(name => name in Object(base))) {
    throw new Error("the picture in the header, before the first event, is not whole: the recording is damaged");
  }
  return new History(header, { ...MemoryMap.empty(num_blocks, block_size), ...base }); // an older base has fewer fields
}

/** The bytes of a recording that lies in a page, packed, as the text of an element. */
function bytesIn(element) {
  return unpacked(new Blob([Uint8Array.from(atob(element.textContent.trim()), letter => letter.charCodeAt(0))]));
}

/** The bytes of a file or an answer, unpacked if they are gzip. */
async function unpacked(blob) {
  const magic = new Uint8Array(await blob.slice(0, 2).arrayBuffer());
  const isGzip = magic[0] === 0x1f && magic[1] === 0x8b;
  return isGzip ? blob.stream().pipeThrough(new DecompressionStream("gzip")) : blob.stream();
}

if (typeof module !== "undefined") module.exports = { readRecording };
