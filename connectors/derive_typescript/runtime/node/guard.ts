// Node's modules as a derivation may see them: time and chance are the document's, and what only real ones, or another
// machine's, could give is refused. `guards.py` says which names of which modules come here.
// deno-lint-ignore-file no-explicit-any

const scope = globalThis as any;
const { fill, random, uuid } = scope[Symbol.for('flow.present')];
const sleeping = scope[Symbol.for('flow.sleeping')];
const { floor } = Math;
const { defineProperty } = Object;
const { apply } = Reflect;

const within = (least: number, most: number) => least + floor(random() * (most - least));
const answered = (value: unknown, done: unknown) =>
    typeof done === 'function' ? queueMicrotask(() => done(null, value)) : value;
const bytes = (size: number) => scope.Buffer.from(fill(new Uint8Array(size)));

const chance = {
    randomUUID: () => uuid(),
    randomBytes: (size: number, done?: unknown) => answered(bytes(size), done),
    pseudoRandomBytes: (size: number, done?: unknown) => answered(bytes(size), done),
    randomInt: (...values: any[]) =>
        typeof values[1] === 'number'
            ? answered(within(values[0], values[1]), values[2])
            : answered(within(0, values[0]), values[1]),
    randomFillSync: (view: any, offset = 0, size?: number) => {
        const all = new Uint8Array(view.buffer ?? view, view.byteOffset ?? 0, view.byteLength);
        fill(all.subarray(offset, size === undefined ? all.length : offset + size));
        return view;
    },
    randomFill: (view: any, ...rest: any[]) => {
        const done = rest[rest.length - 1];
        chance.randomFillSync(view, ...rest.slice(0, -1));
        return answered(view, done);
    },
    getRandomValues: fill,
};
const { setTimeout, setInterval, setImmediate, clearTimeout, clearInterval, clearImmediate } = scope;
const timers = { setTimeout, setInterval, setImmediate, clearTimeout, clearInterval, clearImmediate, promises: sleeping };
const VALUES: Record<string, any> = {
    crypto: chance,
    perf_hooks: { performance },
    timers,
    'timers/promises': sleeping,
    console: { ...scope.console, Console: refusal('console', 'Console') },
    os: { availableParallelism: () => 1 },
    get process() {
        return scope.process; // made when it is first asked for
    },
};

function refusal(module: string, name: string): unknown {
    return function () {
        throw new Error(`'${name}' of node:${module} would show more than documents: real time, chance or the machine`);
    };
}

// A message of HTTP says when it was made.
function withoutDate(message: any): void {
    const store = message._storeHeader;
    message._storeHeader = function (...values: unknown[]) {
        defineProperty(this, 'sendDate', { value: false });
        return apply(store, this, values);
    };
}

const WRITTEN = ['writeSync', 'writeFileSync', 'appendFileSync', 'write', 'writeFile', 'appendFile'];

/** One of the functions for files: the first three descriptors are the runtime's, and what is written there is logged. */
function ofFiles(name: string, original: any): unknown {
    return function (this: unknown, ...values: any[]) {
        const descriptor = typeof values[0] === 'number' ? values[0] : values[1]?.fd;
        if (descriptor !== 0 && descriptor !== 1 && descriptor !== 2) {
            return apply(original, this, values);
        }
        if (descriptor === 0 || !WRITTEN.includes(name)) {
            throw new Error(`fs.${name}: descriptor ${descriptor} is the runtime's`);
        }
        const [, data, begin, length] = values;
        const isPart = typeof data !== 'string' && typeof begin === 'number';
        const chunk = typeof data === 'string' ? scope.Buffer.from(data) : isPart
            ? new Uint8Array(data.buffer, data.byteOffset + begin, length ?? data.byteLength - begin)
            : new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
        scope.process[descriptor === 1 ? 'stdout' : 'stderr'].write(chunk);
        const done = values[values.length - 1];
        return typeof done === 'function' ? queueMicrotask(() => done(null, chunk.length, data)) : chunk.length;
    };
}

/** One of Node's modules, changed where it is, so that it is the same by whatever way it is reached. */
export function guard(module: string, original: any, names: string[]): any {
    const values = VALUES[module];
    if (original.OutgoingMessage !== undefined) {
        withoutDate(original.OutgoingMessage.prototype);
    }
    for (const name of values === original ? [] : names) {
        if (module === 'fs' && original[name] === undefined) {
            continue;
        }
        const isOfFiles = module === 'fs' && !name.startsWith('fstat');
        const value = isOfFiles
            ? ofFiles(name, original[name])
            : values !== undefined && name in values
            ? values[name]
            : refusal(module, name);
        defineProperty(original, name, { value, configurable: true, enumerable: true, writable: true });
    }
    return original;
}
