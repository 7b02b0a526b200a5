// The harness: calls the author's class for each document of a frame, and answers with what it published.
// A frame without documents begins a session, with an instance of its own.
// deno-lint-ignore-file no-explicit-any

import { readFrames, writeFrame } from './frames.ts';
import { rfc3339, setPresent } from './present.ts';

class Read {
    #published: number;
    constructor(readonly doc: unknown, published: number) {
        this.#published = published;
    }
    get publishedAt(): string {
        return rfc3339(this.#published);
    }
}

const { methods } = JSON.parse(Deno.args[0]) as { methods: string[] };
const later = (globalThis as any).setImmediate;
let load: (() => any) | undefined;
let derivation: any;

async function open(): Promise<void> {
    if (load === undefined) {
        const { Derivation } = (await import('./module.ts')) as any;
        if (typeof Derivation !== 'function') {
            throw new TypeError("the module exports no class 'Derivation'");
        }
        load = () => new Derivation({ state: {} });
    }
    derivation = load();
    for (const name of methods) {
        if (typeof derivation[name] !== 'function') {
            throw new TypeError(`the class 'Derivation' has no method '${name}'`);
        }
    }
}

// What was published is written out at once: the author may change a returned object for the next document.
function written(result: unknown): string {
    if (!Array.isArray(result)) {
        const what = result === null ? 'null' : typeof result;
        throw new TypeError(`the method must return an array of documents, and returned ${what}`);
    }
    return JSON.stringify(result);
}

async function process(frame: any): Promise<string> {
    const { transforms, clocks, published, documents } = frame;
    const replies: string[] = [];
    let index = 0;
    try {
        for (; index < documents.length; index++) {
            const document = documents[index];
            setPresent(clocks[index], document);
            const method = methods[transforms[index]];
            // Waiting costs a turn of the event loop, so only for what is to be waited for.
            const result = derivation[method](new Read(document, published[index]));
            replies.push(written(typeof result?.then === 'function' ? await result : result));
        }
    } catch (error) {
        return failed(error, index);
    }
    await turn();
    return `[${replies.join(',')}]`;
}

// Lets the event loop turn once: a rejection that nobody awaits ends the process before the frame is answered.
function turn(): Promise<void> {
    return new Promise((resolve) => later(resolve));
}

function failed(error: unknown, index?: number): string {
    const failure = error instanceof Error ? error : new Error(Deno.inspect(error));
    let stack = '';
    try {
        stack = String(failure.stack ?? '');
    } catch { /* a stack that cannot be shown */ }
    return JSON.stringify({ index, message: `${failure.name}: ${failure.message}`, stack });
}

for (const line of readFrames()) {
    const frame = JSON.parse(line);
    if (frame.documents !== undefined) {
        writeFrame(await process(frame));
        continue;
    }
    try {
        await open();
        writeFrame('[]');
    } catch (error) {
        writeFrame(failed(error));
    }
}
