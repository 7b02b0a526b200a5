// Timers that wait for nothing: time stands still while a document is processed, so they fire as soon as the module
// waits, the earliest first. They end with the document that set them: whose turn would come next depends on how
// documents are framed.

const later = (globalThis as unknown as { setImmediate(action: () => void): void }).setImmediate;

type Timer = { due: number; id: number; every: number | undefined; action: () => void };

let timers: Timer[] = [];
let lastId = 0;
let elapsed = 0;

/** Forgets all timers. */
export function clearTimers(): void {
    if (lastId !== 0) {
        timers = [];
        lastId = 0;
        elapsed = 0;
        epoch++;
    }
}
let epoch = 0;

/** Lets the event loop turn once. */
export function turn(): Promise<void> {
    return new Promise((resolve) => later(resolve));
}

function add(action: unknown, delay: unknown, values: unknown[], repeats: boolean): number {
    if (typeof action !== 'function') {
        throw new TypeError('a timer calls a function');
    }
    const wait = Number(delay) > 0 ? Number(delay) : 0;
    const call = () => void (action as (...values: unknown[]) => unknown)(...values);
    timers[timers.length] = { due: elapsed + wait, id: ++lastId, every: repeats ? wait : undefined, action: call };
    soon();
    return lastId;
}

function soon(): void {
    const mine = epoch;
    later(() => {
        if (mine === epoch) {
            fire();
        }
    });
}

function fire(): void {
    let first = -1;
    for (let place = 0; place < timers.length; place++) {
        const each = timers[place];
        if (first < 0 || each.due < timers[first].due || (each.due === timers[first].due && each.id < timers[first].id)) {
            first = place;
        }
    }
    if (first < 0) {
        return;
    }
    const timer = timers[first];
    elapsed = timer.due;
    if (timer.every === undefined) {
        remove(timer.id);
    } else {
        timer.due += timer.every || 1;
        soon();
    }
    timer.action();
}

function remove(id: unknown): void {
    const kept: Timer[] = [];
    for (let place = 0; place < timers.length; place++) {
        if (timers[place].id !== Number(id)) {
            kept[kept.length] = timers[place];
        }
    }
    timers = kept;
}

/** What waits for a time, as promises; Node's modules have it from there. */
const sleeping = {
    setTimeout: (delay?: unknown, value?: unknown) => new Promise((done) => add(done, delay, [value], false)),
    setImmediate: (value?: unknown) => new Promise((done) => add(done, 0, [value], false)),
    setInterval: async function* (delay?: unknown, value?: unknown) {
        for (;;) {
            yield await sleeping.setTimeout(delay, value);
        }
    },
    scheduler: {
        wait: (delay?: unknown) => sleeping.setTimeout(delay),
        yield: () => sleeping.setImmediate(),
    },
};

Object.defineProperty(globalThis, Symbol.for('flow.sleeping'), { value: sleeping });

const fields = {
    setTimeout: (action: unknown, delay?: unknown, ...values: unknown[]) => add(action, delay, values, false),
    setInterval: (action: unknown, delay?: unknown, ...values: unknown[]) => add(action, delay, values, true),
    setImmediate: (action: unknown, ...values: unknown[]) => add(action, 0, values, false),
    clearTimeout: remove,
    clearInterval: remove,
    clearImmediate: remove,
};
for (const [name, value] of Object.entries(fields)) {
    Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });
}
AbortSignal.timeout = (delay: number) => {
    const controller = new AbortController();
    add(() => controller.abort(new DOMException('Signal timed out.', 'TimeoutError')), delay, [], false);
    return controller.signal;
};
