// What would tell one machine, process or moment from another, or keep what no transaction knows of, is not there
// (law L1). Imported for its effect, before the author's module is.
// deno-lint-ignore-file no-explicit-any

import { presentMillis } from './present.ts';
import { nodeOutlet } from './say.ts';

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

// Node's `process` is made when it is first asked for.
const original = Object.getOwnPropertyDescriptor(scope, 'process')!;
let patched: any;
Object.defineProperty(scope, 'process', {
    get: () => patched ??= patch(original.get ? original.get.call(scope) : original.value),
    set: (value) => void (patched = value),
    configurable: true,
});

function patch(node: any): any {
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
        hrtime: { value: hrtime },
        stdout: { value: nodeOutlet('info') },
        stderr: { value: nodeOutlet('error') },
    };
    for (const [name, descriptor] of Object.entries(replaced)) {
        Reflect.defineProperty(node, name, descriptor);
    }
    return node;
}

function hrtime(): number[] {
    return [Math.floor(presentMillis() / 1000), (presentMillis() % 1000) * 1e6];
}
hrtime.bigint = () => BigInt(presentMillis()) * 1_000_000n;

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
