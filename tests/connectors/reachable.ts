// A module that publishes all values that it can reach from the global scope and Node's modules, and what functions without
// arguments give, by name. Left out are functions that end, wait, start or write something, and those of the network.
import { builtinModules } from 'node:module';
import * as hooks from 'node:async_hooks';

const ACTS =
    /^(emit|nodeBootstrap|dispatchEvent|exit|reallyExit|abort|close|kill|_kill|_debugProcess|_debugEnd|dlopen|chdir|openStdin|prompt|alert|confirm|serve|listen|run|runMain|start|test|bench|it|describe|suite|before|after|beforeEach|afterEach|mock|snapshot|wait|waitForDebugger|open|disconnect|reportError|fork|spawn|exec|execFile|setImmediate|setTimeout|setInterval|queueMicrotask|nextTick|readline|createInterface|emitKeypressEvents|_fatalException|_rawDebug|enable|executionAsyncResource|Session|REPLServer|repl|addSignalListener|watch|watchFile|upgradeWebSocket|createBrotliCompress)$/;
const STARTS = /(write|read|log|error|warn|info|debug|dir|trace|create|make|remove|unlink|mkdir|Signal|stop|import|fetch)/i;
const OF_OTHERS = /^node:(dns|net|http|tls|dgram|child|_http|_tls|stream|_stream|fs|readline|diag)/;
const NOT_WALKED = /test|repl|cluster|inspector/;

const reached: Record<string, string> = {};
const seen = new Set<unknown>();

function put(key: string, value: any): void {
    if (value === null || !['object', 'function', 'symbol'].includes(typeof value)) {
        reached[key] = String(value).slice(0, 300);
    }
}

function call(target: any, key: string, method: any): void {
    try {
        const result = Reflect.apply(method, target, []);
        if (typeof result?.then === 'function') {
            result.then(() => {}, () => {});
            return;
        }
        put(`${key}()`, result);
        if (typeof result === 'object') {
            reached[`${key}() as JSON`] = (JSON.stringify(result) ?? '').slice(0, 300);
        }
    } catch (error: any) {
        reached[`${key}()`] = `refused: ${String(error?.message).slice(0, 80)}`;
    }
}

function isCalled(key: string, name: string): boolean {
    return !key.includes('prototype') && !OF_OTHERS.test(key) && !/^[A-Z_]/.test(name) && !ACTS.test(name) &&
        !STARTS.test(name);
}

function walk(target: any, path: string, depth: number): void {
    if (target === null || (typeof target !== 'object' && typeof target !== 'function')) {
        return;
    }
    if (seen.has(target) || depth > 4) {
        return;
    }
    seen.add(target);
    let names: (string | symbol)[];
    try {
        names = Reflect.ownKeys(target);
    } catch { // a proxy that refuses
        return;
    }
    for (const name of names) {
        const key = `${path}.${String(name)}`;
        if (key.includes('prototype.constructor') || key.includes('Symbol()')) {
            continue;
        }
        let value: any;
        try {
            value = target[name];
        } catch (error: any) {
            reached[key] = `refused: ${String(error?.message).slice(0, 80)}`;
            continue;
        }
        if (value instanceof Promise) {
            value.catch(() => {});
            continue;
        }
        put(key, value);
        if (typeof value === 'function' && typeof name === 'string' && isCalled(key, name)) {
            call(target, key, value);
        }
        walk(value, key, depth + 1);
    }
}

export class Derivation extends IDerivation {
    async fromIn(read: any): Promise<any> {
        if (!read.doc.walk) { // a history
            await new Promise((done) => setTimeout(done, 1));
            JSON.stringify(Array.from({ length: 10_000 }, (_, place) => ({ place })));
            return [];
        }
        for (const name of builtinModules) {
            if (!NOT_WALKED.test(name)) {
                walk((globalThis as any).process.getBuiltinModule(name), `node:${name}`, 1);
            }
        }
        walk(globalThis, 'globalThis', 0);
        walk(import.meta, 'import.meta', 2);
        reached['stack of an error'] = new Error('x').stack!;
        reached['id of an async resource'] = String(new hooks.AsyncResource('x').asyncId());
        return [{ id: 1, reached }];
    }
}
