// What a module says goes to the log of its task: a line of its own between frames, at once, so that it is known even
// if the module never answers. Imported for its effect, before the author's module is.
// deno-lint-ignore-file no-explicit-any

import { writeFrame } from './frames.ts';
import { wellFormed } from './documents.ts';

type Level = 'debug' | 'info' | 'warn' | 'error';

const { stringify } = JSON;
const inspect = Deno.inspect;
const decode = TextDecoder.prototype.decode.bind(new TextDecoder());
const replace = Function.prototype.call.bind(String.prototype.replace) as any;
const LONGEST = 10_000;

function say(level: Level, text: string): void {
    writeFrame(`["${level}",${stringify(wellFormed(text.length > LONGEST ? text.slice(0, LONGEST) : text))}]`, 'log');
}

function shown(value: unknown): string {
    return typeof value === 'string' ? value : inspect(value, { colors: false });
}

/** As `console.log` puts its arguments together. */
function format(values: unknown[]): string {
    let used = 0;
    let text = '';
    if (typeof values[0] === 'string' && values.length > 1) {
        used = 1;
        text = replace(values[0], /%[sdifoOjc%]/g, (mark: string) => {
            if (mark === '%%' || used >= values.length) {
                return mark === '%%' ? '%' : mark;
            }
            const value = values[used++] as any;
            switch (mark) {
                case '%c':
                    return '';
                case '%d':
                    return String(Number(value));
                case '%i':
                    return String(parseInt(value));
                case '%f':
                    return String(parseFloat(value));
                case '%j':
                    return String(stringify(value));
                case '%s':
                    return shown(value);
                default:
                    return inspect(value, { colors: false });
            }
        });
    }
    for (; used < values.length; used++) {
        text += (used ? ' ' : '') + shown(values[used]);
    }
    return text;
}

const levels: Record<string, Level> = {
    debug: 'debug',
    log: 'info',
    info: 'info',
    dir: 'info',
    dirxml: 'info',
    table: 'info',
    group: 'info',
    groupCollapsed: 'info',
    trace: 'info',
    warn: 'warn',
    error: 'error',
};
for (const name of Object.keys(levels)) {
    (console as any)[name] = (...values: unknown[]) => say(levels[name], format(values));
}
console.dir = (value: unknown) => say('info', inspect(value, { colors: false }));
console.assert = (holds?: unknown, ...values: unknown[]) => {
    if (!holds) {
        say('error', `assertion failed${values.length ? ': ' : ''}${format(values)}`);
    }
};
const counts = new Map<string, number>();
console.count = (label = 'default') => {
    counts.set(label, (counts.get(label) ?? 0) + 1);
    say('info', `${label}: ${counts.get(label)}`);
};
console.countReset = (label = 'default') => void counts.delete(label);
for (const name of ['groupEnd', 'clear', 'time', 'timeLog', 'timeEnd', 'timeStamp', 'profile', 'profileEnd']) {
    (console as any)[name] = () => {}; // what they would tell is not the document's time
}

/** Stands for an output of the process. */
function outlet(level: Level) {
    const writeSync = (bytes: Uint8Array) => {
        say(level, replace(decode(bytes), /\n$/, ''));
        return bytes.length;
    };
    return { writeSync, write: (bytes: Uint8Array) => Promise.resolve(writeSync(bytes)), isTerminal: () => false };
}
Object.defineProperty(Deno, 'stdout', { value: outlet('info') });
Object.defineProperty(Deno, 'stderr', { value: outlet('error') });
Object.defineProperty(Deno, 'stdin', { value: { readSync: () => null, read: () => Promise.resolve(null) } });

/** The same, as Node has it. */
export function nodeOutlet(level: Level): unknown {
    const write = (chunk: any, ...rest: any[]) => {
        say(level, replace(typeof chunk === 'string' ? chunk : decode(chunk), /\n$/, ''));
        const done = rest[rest.length - 1];
        if (typeof done === 'function') {
            done();
        }
        return true;
    };
    return { write, isTTY: false, on() {}, once() {}, end() {}, emit() {}, removeListener() {} };
}
