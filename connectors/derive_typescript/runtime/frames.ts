// Frames: one text each way carries many documents, so that nothing crosses the pipe one document at a time.
// Standard input and output belong to frames alone. A module can reach both, by their numbers, whatever it is refused; so
// each frame begins and ends with a token that flowctl made up for this process, and has its length in between: what a
// module writes is no frame, and what it reads is missed.
// What is called here is kept from before the author's module is loaded, which may replace what it likes.

let clock: (() => number) | undefined = performance.now.bind(performance);

/** Milliseconds that really pass, for whoever asks first. */
export function takeClock(): () => number {
    const taken = clock!;
    clock = undefined;
    return taken;
}

/** What the process was started with. */
export const argument = Deno.args[0];

const read = Deno.stdin.readSync.bind(Deno.stdin);
const write = Deno.stdout.writeSync.bind(Deno.stdout);
const decode = TextDecoder.prototype.decode.bind(new TextDecoder());
const encoder = new TextEncoder();
const encode = TextEncoder.prototype.encode.bind(encoder);
const encodeInto = TextEncoder.prototype.encodeInto.bind(encoder);
const set = Function.prototype.call.bind(Uint8Array.prototype.set) as unknown as (
    bytes: Uint8Array,
    values: Uint8Array,
    offset?: number,
) => void;
const Bytes = Uint8Array; // `subarray` would ask a module which class it has
const { floor } = Math;

const TOKEN = 16;
const HEAD = TOKEN + 1 + 6; // a token, the kind of the frame, and its length
const SHORT = 20_000; // characters of a frame that is written at once

let held = new Bytes(1 << 20);
let begin = 0;
let end = 0;
const token = new Bytes(TOKEN);
require(TOKEN);
set(token, new Bytes(held.buffer, 0, TOKEN));
begin = TOKEN;

/** Reads until so many bytes are held; false where the input ends. */
function require(count: number): boolean {
    if (held.length - begin < count) {
        const larger = new Bytes(count > held.length ? 2 * count : held.length);
        set(larger, new Bytes(held.buffer, begin, end - begin));
        held = larger;
        end -= begin;
        begin = 0;
    }
    while (end - begin < count) {
        const got = read(new Bytes(held.buffer, end, held.length - end));
        if (got === null) {
            return false;
        }
        end += got;
    }
    return true;
}

/** The next text of standard input; undefined where it ends. */
export function readFrame(): string | undefined {
    if (!require(HEAD)) {
        return undefined;
    }
    for (let place = 0; place < TOKEN; place++) {
        if (held[begin + place] !== token[place]) {
            throw new Error('the module read from descriptor 0, which is the runtime\'s');
        }
    }
    let length = 0;
    for (let place = TOKEN + 1; place < HEAD; place++) {
        length = length * 256 + held[begin + place];
    }
    begin += HEAD;
    if (!require(length)) {
        return undefined;
    }
    const text = decode(new Bytes(held.buffer, begin, length));
    begin += length;
    return text;
}

const short = new Bytes(HEAD + 3 * SHORT + TOKEN);
set(short, token);

/** The head of a frame of so many bytes, where short frames have it. */
function head(kind: number, length: number): void {
    short[TOKEN] = kind;
    for (let place = HEAD - 1; place > TOKEN; place--) {
        short[place] = length % 256;
        length = floor(length / 256);
    }
}

function writeAll(bytes: Uint8Array, length: number): void {
    for (let begin = 0; begin < length;) {
        begin += write(new Bytes(bytes.buffer, begin, length - begin));
    }
}

/** Writes a text: an answer, or what goes to the log. */
export function writeFrame(text: string, kind: 'answer' | 'log' = 'answer'): void {
    const letter = kind === 'answer' ? 65 : 76;
    if (text.length <= SHORT) {
        const { written } = encodeInto(text, new Bytes(short.buffer, HEAD, 3 * SHORT));
        head(letter, written);
        set(short, token, HEAD + written);
        writeAll(short, HEAD + written + TOKEN);
        return;
    }
    const bytes = encode(text);
    head(letter, bytes.length);
    writeAll(short, HEAD);
    writeAll(bytes, bytes.length);
    writeAll(token, TOKEN);
}
