// The harness: calls the author's class for each document of a frame, and answers with what it published.
// A frame asks to `open` a session, to `commit` one, or holds documents; each is answered by a frame, documents perhaps
// by several, in order. The end of a tick is a document of a transform of its own, behind all others: `flush`.
// deno-lint-ignore-file no-explicit-any

import { argument, readFrame, takeClock, writeFrame } from './frames.ts';
import './say.ts';
import { rfc3339, setPresent, setTickEnd } from './present.ts';
import { clearTimers, turn } from './timers.ts';
import { Columns, Documents, type Published } from './columns.ts';
import { wellFormed, writtenState } from './documents.ts';
import { allowBuiltins, end } from './absent.ts';

const now = takeClock();
const { parse, stringify } = JSON;
const inspect = Deno.inspect;
const PATIENCE = 250; // milliseconds after which what is done is told before the frame is
const MOST_CHARACTERS = 8 << 20;

class Read {
    #published: number;
    constructor(readonly doc: unknown, published: number) {
        this.#published = published;
    }
    get publishedAt(): string {
        return rfc3339(this.#published);
    }
}

const { methods, guarded } = parse(argument) as { methods: string[]; guarded: boolean };
const flush = methods.length;
let Derivation: any;
let inherited: any;
let derivation: any;
let differ = false; // documents of the batch at hand, in their properties, so that they are no columns
let broken = false; // a method has failed, so all further documents are skipped until a session is opened
let index: number | undefined; // of the document at hand, among those that are not answered yet

function own(name: string): boolean {
    return typeof derivation[name] === 'function' && derivation[name] !== inherited?.[name];
}

// Begins a session, with an instance of its own.
async function open(state: unknown, forget: boolean): Promise<string> {
    broken = differ = false;
    setPresent(0, null);
    if (Derivation === undefined) {
        const { load } = (await import('./derivation.ts')) as any;
        if (guarded) { // as they are by now
            allowBuiltins();
        }
        const { interfaces, module } = await load();
        inherited = interfaces.IDerivation.prototype;
        Derivation = module.Derivation;
        if (typeof Derivation !== 'function') {
            throw new TypeError("the module exports no class 'Derivation'");
        }
    } else if (forget && derivation !== undefined && own('reset')) {
        await derivation.reset();
    }
    setPresent(0, null);
    derivation = new Derivation({ state });
    for (let place = 0; place < methods.length; place++) {
        if (typeof derivation[methods[place]] !== 'function') {
            throw new TypeError(`the class 'Derivation' has no method '${methods[place]}'`);
        }
    }
    return `{"opened":{"flush":${own('flush')},"startCommit":${own('startCommit')},"reset":${own('reset')}}}`;
}

async function process({ transforms, clocks, published = clocks, documents, columns, last }: any): Promise<string> {
    const begin = (): Published => columns && !differ ? new Columns() : new Documents();
    let answer = begin();
    let stride = 16;
    let checked = now();
    let told = checked;
    index = 0;
    try {
        for (let place = 0; place < documents.length; place++, index++) {
            const which = transforms[place];
            let result: any;
            if (which === flush) {
                setTickEnd(clocks[place]);
                result = derivation.flush();
            } else {
                const document = documents[place];
                setPresent(clocks[place], document, which);
                result = derivation[methods[which]](new Read(document, published[place]));
            }
            // Waiting costs a turn of the event loop, so only for what is to be waited for.
            if (typeof result?.then === 'function') {
                result = await result;
            }
            clearTimers();
            if (!answer.take(result)) {
                answer = (answer as Columns).documents();
                answer.take(result);
                differ = true;
            }
            if (place % stride === 0 || answer.size > MOST_CHARACTERS) {
                const moment = now();
                stride = moment - checked > PATIENCE / 4 ? 1 : stride;
                checked = moment;
                if (place + 1 < documents.length && (moment - told > PATIENCE || answer.size > MOST_CHARACTERS)) {
                    writeFrame(answer.text());
                    told = moment;
                    answer = begin();
                    index = -1; // as it is about to be raised
                }
            }
        }
    } catch (error) {
        broken = true;
        return failed(error);
    }
    if (last) {
        differ = false;
        await turn(); // a rejection that nobody awaits ends the process before the batch is answered
    }
    return answer.text();
}

async function commit(): Promise<string> {
    setPresent(0, null);
    const { state } = (await derivation.startCommit({ runtimeCheckpoint: {} })) ?? {};
    if (state === undefined || state === null) {
        return '{"committed":null}';
    }
    return `{"committed":{"updated":${writtenState(state.updated)},"mergePatch":${state.mergePatch === true}}}`;
}

function failed(error: unknown): string {
    let message = '';
    let stack = '';
    try {
        const failure = error instanceof Error ? error : new Error(inspect(error));
        message = `${failure.name}: ${failure.message}`;
        stack = `${failure.stack ?? ''}`;
    } catch { /* what cannot be shown */ }
    return `{"error":{"index":${index ?? 0},"message":${stringify(wellFormed(message))},"stack":${stringify(wellFormed(stack))}}}`;
}

async function answer(line: string): Promise<string> {
    const frame = parse(line);
    if (frame.documents !== undefined) {
        return broken ? '{"skipped":true}' : await process(frame);
    }
    index = undefined;
    try {
        return frame.open ? await open(frame.open.state, frame.open.forget) : await commit();
    } catch (error) {
        return failed(error);
    }
}

// Nothing is left to do while an answer is owed: what is waited for can never come.
addEventListener('beforeunload', () => {
    writeFrame(failed(new Error('it waits for a promise that nothing will ever resolve')));
});

async function serve(): Promise<never> {
    for (let line = readFrame(); line !== undefined; line = readFrame()) {
        writeFrame(await answer(line));
        index = undefined;
    }
    return end();
}

serve();
