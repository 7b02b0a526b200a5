// What would tell one machine, process or moment from another, or keep what no transaction knows of, is not there
// (law L1). Imported for its effect, before the author's module is.
// deno-lint-ignore-file no-explicit-any

import nodeCrypto from 'node:crypto';
import nodePerformance from 'node:perf_hooks';
import { fill, presentMillis, random, uuid } from './present.ts';

const scope = globalThis as any;

const globals = ['localStorage', 'sessionStorage', 'caches', 'Worker', 'BroadcastChannel', 'alert', 'confirm', 'prompt'];
for (const name of globals) {
    Reflect.deleteProperty(scope, name);
}
const ofProcess = ['pid', 'ppid', 'memoryUsage', 'cpuUsage', 'consoleSize', 'args', 'telemetry', 'jupyter'];
for (const name of ofProcess) {
    Reflect.deleteProperty(Deno, name);
}
Object.defineProperty(navigator, 'hardwareConcurrency', { value: 1 });
Object.defineProperty(navigator, 'gpu', { value: undefined });

function refuse(what: string): () => never {
    return () => {
        throw new Error(`${what}: a derivation's module does not end its process`);
    };
}
const exit = Deno.exit.bind(Deno);
Deno.exit = refuse('Deno.exit');
scope.close = refuse('close');

const node = scope.process;
const replaced: PropertyDescriptorMap = {
    exit: { value: refuse('process.exit') },
    reallyExit: { value: refuse('process.reallyExit') },
    abort: { value: refuse('process.abort') },
    pid: { value: 1 },
    ppid: { value: 0 },
    argv: { value: [] },
    uptime: { value: () => 0 },
    memoryUsage: { value: () => ({ rss: 0, heapTotal: 0, heapUsed: 0, external: 0, arrayBuffers: 0 }) },
    cpuUsage: { value: () => ({ user: 0, system: 0 }) },
    resourceUsage: { value: () => ({}) },
};
for (const [name, descriptor] of Object.entries(replaced)) {
    Reflect.defineProperty(node, name, descriptor);
}
const hrtime = () => [Math.floor(presentMillis() / 1000), (presentMillis() % 1000) * 1e6];
hrtime.bigint = () => BigInt(presentMillis()) * 1_000_000n;
Object.defineProperty(node, 'hrtime', { value: hrtime });

// Libraries from npm ask Node's modules; what they take from them by name is taken when they are loaded.
const within = (least: number, most: number) => least + Math.floor(random() * (most - least));
const answered = (value: unknown, done: unknown) =>
    typeof done === 'function' ? queueMicrotask(() => done(null, value)) : value;
const bytes = (size: number) => scope.Buffer.from(fill(new Uint8Array(size)));
const chance: Record<string, unknown> = {
    randomUUID: () => uuid(),
    randomBytes: (size: number, done?: unknown) => answered(bytes(size), done),
    pseudoRandomBytes: (size: number, done?: unknown) => answered(bytes(size), done),
    randomInt: (...values: any[]) =>
        typeof values[1] === 'number'
            ? answered(within(values[0], values[1]), values[2])
            : answered(within(0, values[0]), values[1]),
    randomFillSync: (view: Uint8Array, offset = 0, size?: number) => {
        fill(new Uint8Array(view.buffer, view.byteOffset + offset, size ?? view.byteLength - offset));
        return view;
    },
    randomFill: (view: Uint8Array, ...rest: unknown[]) => answered(fill(view), rest[rest.length - 1]),
    getRandomValues: fill,
};
for (const name of ['generateKey', 'generateKeySync', 'generateKeyPair', 'generateKeyPairSync']) {
    chance[name] = () => {
        throw new Error(`crypto.${name} gives something else each time`);
    };
}
for (const [name, value] of Object.entries(chance)) {
    Object.defineProperty(nodeCrypto, name, { value, configurable: true, enumerable: true, writable: true });
}
Object.defineProperty(nodePerformance, 'performance', { value: performance, configurable: true, enumerable: true });

// When something is collected is not the document's time.
scope.WeakRef = class WeakRef {
    #target: unknown;
    constructor(target: unknown) {
        this.#target = target;
    }
    deref(): unknown {
        return this.#target;
    }
};
scope.FinalizationRegistry = class FinalizationRegistry {
    register(): void {}
    unregister(): boolean {
        return false;
    }
};

/** Ends the process. */
export function end(): never {
    return exit(0);
}
