// Frames: one line of JSON each way carries many documents, so that nothing crosses the pipe one document at a time.
// Standard input and output belong to frames alone; the author's module sees neither.

const input = Deno.stdin;
const output = Deno.stdout;
const encoder = new TextEncoder();
const decoder = new TextDecoder();

Object.defineProperty(Deno, 'stdout', { value: Deno.stderr });
Object.defineProperty(Deno, 'stdin', { value: { readSync: () => null, read: () => Promise.resolve(null) } });
const say = console.error;
for (const name of ['log', 'info', 'debug', 'dir', 'dirxml', 'table', 'group', 'groupCollapsed', 'count']) {
    Object.assign(console, { [name]: (...values: unknown[]) => say(...values) });
}
for (const name of ['groupEnd', 'countReset', 'time', 'timeLog', 'timeEnd']) {
    Object.assign(console, { [name]: () => {} }); // what they would tell is not the document's time
}

/** Frames of standard input, until it ends. */
export function* readFrames(): Generator<string> {
    const buffer = new Uint8Array(1 << 18);
    let parts: Uint8Array[] = [];
    for (let count = input.readSync(buffer); count !== null; count = input.readSync(buffer)) {
        let begin = 0;
        for (let end = buffer.indexOf(10); end >= 0 && end < count; end = buffer.indexOf(10, begin)) {
            parts.push(buffer.slice(begin, end));
            yield join(parts);
            parts = [];
            begin = end + 1;
        }
        parts.push(buffer.slice(begin, count));
    }
}

function join(parts: Uint8Array[]): string {
    if (parts.length === 1) {
        return decoder.decode(parts[0]);
    }
    const line = new Uint8Array(parts.reduce((total, part) => total + part.length, 0));
    let place = 0;
    for (const part of parts) {
        line.set(part, place);
        place += part.length;
    }
    return decoder.decode(line);
}

/** Answers a frame. */
export function writeFrame(text: string): void {
    let bytes = encoder.encode(text + '\n');
    while (bytes.length > 0) {
        bytes = bytes.subarray(output.writeSync(bytes));
    }
}
