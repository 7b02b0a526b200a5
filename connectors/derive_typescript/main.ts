// The harness: reads frames from standard input, calls the derivation, and answers each with one frame.
// A frame is one line of JSON. It carries a whole batch, so that nothing crosses the pipe per document.
// deno-lint-ignore-file no-explicit-any

const input = Deno.stdin;
const output = Deno.stdout;
const encoder = new TextEncoder();
const decoder = new TextDecoder();

// What a module prints must not end up between frames.
console.log = console.info = console.debug = (...values: unknown[]) => console.error(...values);

// The present and the dice are those of the document (law L1).
let clock = 0; // milliseconds
let seed: string | undefined;
let state = 0;
const RealDate = Date;
globalThis.Date = class extends RealDate {
    constructor(...values: any[]) {
        if (values.length === 0) {
            super(clock);
        } else {
            super(...(values as [any]));
        }
    }
    static override now(): number {
        return clock;
    }
} as DateConstructor;

let document: unknown;
Math.random = (): number => {
    if (seed === undefined) {
        seed = JSON.stringify(document) + clock;
        state = 0x811c9dc5;
        for (let place = 0; place < seed.length; place++) {
            state = Math.imul(state ^ seed.charCodeAt(place), 0x01000193);
        }
    }
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
};

function* lines(): Generator<string> {
    const buffer = new Uint8Array(1 << 20);
    let parts: Uint8Array[] = [];
    for (;;) {
        const count = input.readSync(buffer);
        if (count === null) {
            return;
        }
        let begin = 0;
        for (;;) {
            const end = buffer.subarray(0, count).indexOf(10, begin);
            if (end < 0) {
                parts.push(buffer.slice(begin, count));
                break;
            }
            parts.push(buffer.slice(begin, end));
            const size = parts.reduce((total, part) => total + part.length, 0);
            const line = new Uint8Array(size);
            let place = 0;
            for (const part of parts) {
                line.set(part, place);
                place += part.length;
            }
            parts = [];
            begin = end + 1;
            yield decoder.decode(line);
        }
    }
}

function write(value: unknown): void {
    let bytes = encoder.encode(JSON.stringify(value) + '\n');
    while (bytes.length > 0) {
        bytes = bytes.subarray(output.writeSync(bytes));
    }
}

const writeFrame = write;
const { Derivation } = await import('./module.ts');
const { methods } = JSON.parse(Deno.args[0]) as { methods: string[] };
const derivation = new Derivation({ state: {} });

for (const line of lines()) {
    const frame = JSON.parse(line);
    const published: unknown[] = [];
    let index = 0;
    try {
        for (; index < frame.documents.length; index++) {
            document = frame.documents[index];
            clock = frame.clocks[index] / 1000;
            seed = undefined;
            let result = derivation[methods[frame.transforms[index]]]({ doc: document });
            if (result !== undefined && typeof result?.then === 'function') {
                result = await result;
            }
            if (!Array.isArray(result)) {
                throw new TypeError(`the method must return an array of documents, and returned ${typeof result}`);
            }
            published.push(result);
        }
        writeFrame(published);
    } catch (error) {
        const failure = error instanceof Error ? error : new Error(String(error));
        writeFrame({ index, message: `${failure.name}: ${failure.message}`, stack: failure.stack ?? '' });
    }
}
