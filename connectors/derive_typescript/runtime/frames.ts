// Frames: one line of JSON each way carries many documents, so that nothing crosses the pipe one document at a time.
// Standard input and output belong to frames alone; the author's module sees neither.
// What is called here is kept from before the author's module is loaded, which may replace what it likes.

let clock: (() => number) | undefined = performance.now.bind(performance);

/** Milliseconds that really pass, for whoever asks first: the author's module may import this one by its URL. */
export function takeClock(): () => number {
    const taken = clock!;
    clock = undefined;
    return taken;
}

/** What the process was started with. */
export const argument = Deno.args[0];

const input = Deno.stdin;
const output = Deno.stdout;
const read = input.readSync.bind(input);
const write = output.writeSync.bind(output);
const decode = TextDecoder.prototype.decode.bind(new TextDecoder());
const encode = TextEncoder.prototype.encode.bind(new TextEncoder());
const kept = <T extends unknown[], R>(method: (this: Uint8Array, ...values: T) => R) =>
    Function.prototype.call.bind(method) as unknown as (bytes: Uint8Array, ...values: T) => R;
const indexOf = kept(Uint8Array.prototype.indexOf);
const subarray = kept(Uint8Array.prototype.subarray);
const set = kept(Uint8Array.prototype.set);

let held = new Uint8Array(1 << 20);
let begin = 0;
let end = 0;

/** The next line of standard input; undefined where it ends. */
export function readFrame(): string | undefined {
    let looked = begin;
    for (;;) {
        const found = indexOf(subarray(held, looked, end), 10);
        if (found >= 0) {
            const line = decode(subarray(held, begin, looked + found));
            begin = looked + found + 1;
            return line;
        }
        looked = end;
        if (end === held.length) {
            const larger = begin > held.length / 2 ? held : new Uint8Array(2 * held.length);
            set(larger, subarray(held, begin, end));
            held = larger;
            looked -= begin;
            end -= begin;
            begin = 0;
        }
        const count = read(subarray(held, end));
        if (count === null) {
            return undefined;
        }
        end += count;
    }
}

/** Writes a line. */
export function writeFrame(text: string): void {
    let bytes = encode(text + '\n');
    while (bytes.length > 0) {
        bytes = subarray(bytes, write(bytes));
    }
}
