// What would tell one machine, process or moment from another, or keep what no transaction knows of, is not there
// (law L1). Imported for its effect, before the author's module is.
// deno-lint-ignore-file no-explicit-any

import { argument } from './frames.ts';
import { presentMillis } from './present.ts';
import { nodeOutlet } from './say.ts';

const scope = globalThis as any;

const globals = ['localStorage', 'sessionStorage', 'caches', 'Worker', 'BroadcastChannel', 'alert', 'confirm', 'prompt'];
for (const name of globals) {
    Reflect.deleteProperty(scope, name);
}
// Deno's own insides, and what else real time, real chance or another thread could be reached through.
Reflect.deleteProperty(Deno, (Deno as any).internal);
Reflect.deleteProperty(Deno, 'internal');
Reflect.deleteProperty(Atomics, 'waitAsync');
for (const name of ['createTask', 'context']) {
    Reflect.deleteProperty(console, name);
}
const { net } = JSON.parse(argument);
if (!net) { // forms are posted, and a form as a body has a random boundary
    Reflect.deleteProperty(scope, 'FormData');
    for (const body of [Request.prototype, Response.prototype] as any[]) {
        body.formData = () => Promise.reject(new Error('there are no forms without permission to use the network'));
    }
}
URL.createObjectURL = () => {
    throw new Error('URL.createObjectURL gives something else each time');
};
const ofProcess = ['pid', 'ppid', 'memoryUsage', 'cpuUsage', 'consoleSize', 'args', 'telemetry', 'jupyter'];
for (const name of ofProcess) {
    Reflect.deleteProperty(Deno, name);
}
for (const [name, value] of Object.entries({ hardwareConcurrency: 1, gpu: undefined, locks: undefined })) {
    Object.defineProperty(Object.getPrototypeOf(navigator), name, { value });
}

function refuse(what: string): () => never {
    return () => {
        throw new Error(`${what}: a derivation's module does not end its process`);
    };
}
const exit = Deno.exit.bind(Deno);
Deno.exit = refuse('Deno.exit');
Deno.execPath = () => 'deno';
scope.close = refuse('close');

let builtinsAllowed = false;

/** From now on Node's modules may be asked for by name: all that need a guard have theirs. */
export function allowBuiltins(): void {
    builtinsAllowed = true;
}

// Node's `process` is made when it is first asked for.
const original = Object.getOwnPropertyDescriptor(scope, 'process')!;
let patched: any;
Object.defineProperty(scope, 'process', {
    get: () => patched ??= patch(original.get ? original.get.call(scope) : original.value),
    set: (value) => void (patched = value),
    configurable: true,
});

const noMemory = { rss: 0, heapTotal: 0, heapUsed: 0, external: 0, arrayBuffers: 0 };

function patch(node: any): any {
    const replaced: PropertyDescriptorMap = {
        exit: { value: refuse('process.exit') },
        reallyExit: { value: refuse('process.reallyExit') },
        abort: { value: refuse('process.abort') },
        argv: { value: [] },
        execPath: { value: 'deno' },
        uptime: { value: () => 0 },
        memoryUsage: { value: Object.assign(() => ({ ...noMemory }), { rss: () => 0 }) },
        availableMemory: { value: () => 0 },
        constrainedMemory: { value: () => 0 },
        threadCpuUsage: { value: () => ({ user: 0, system: 0 }) },
        binding: { value: refuseNode('process.binding') },
        _kill: { value: refuse('process._kill') },
        kill: { value: refuse('process.kill') },
        _debugProcess: { value: refuseNode('process._debugProcess') },
        getActiveResourcesInfo: { value: () => [] },
        _getActiveHandles: { value: () => [] },
        _getActiveRequests: { value: () => [] },
        getBuiltinModule: { value: builtinOf(node.getBuiltinModule) },
        cpuUsage: { value: () => ({ user: 0, system: 0 }) },
        resourceUsage: { value: () => ({}) },
        hrtime: { value: hrtime },
        stdin: { value: { isTTY: false, on() {}, once() {}, read: () => null, resume() {}, pause() {}, setEncoding() {} } },
        stdout: { value: nodeOutlet('info') },
        stderr: { value: nodeOutlet('error') },
    };
    for (const [name, descriptor] of Object.entries(replaced)) {
        Reflect.defineProperty(node, name, descriptor);
    }
    return node;
}

function refuseNode(what: string): () => never {
    return () => {
        throw new Error(`${what} is not available to derivations`);
    };
}

function builtinOf(find: (name: string) => unknown): (name: string) => unknown {
    return (name) => builtinsAllowed ? find(name) : refuseNode('process.getBuiltinModule without an import of it')();
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
