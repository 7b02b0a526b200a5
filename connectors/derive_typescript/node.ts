// Chance and time as libraries from npm ask Node's modules for them. What they take from those by name is taken when they
// are loaded, and stays as it is. Loaded only for modules that use libraries or Node's modules, as it takes its time.
// deno-lint-ignore-file no-explicit-any

import nodeCrypto from 'node:crypto';
import nodePerformance from 'node:perf_hooks';
import { fill, random, uuid } from './present.ts';

const scope = globalThis as any;
void scope.process; // which is then as this derivation may see it

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
