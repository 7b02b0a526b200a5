// Time and chance as the document has them: processing it again, at any later time, gives the same (law L1).
// Imported for its effect, before the author's module is.

const { floor } = Math;
const { stringify } = JSON;
const charCodeAt = Function.prototype.call.bind(String.prototype.charCodeAt) as unknown as (
    text: string,
    place: number,
) => number;
const { apply, construct } = Reflect; // as a module may replace them, to see what they are given
const NO_CHANCE = Symbol();

let clock = 0; // milliseconds
let exact = 0; // microseconds
let reader = 0;
let present: unknown = null;
let seeded = false;

/** Makes a document the present one, for the transform of this number: `Date` shows `micros`, and chance starts anew. */
export function setPresent(micros: number, value: unknown, transform = 0): void {
    clock = floor(micros / 1000);
    exact = micros;
    reader = transform;
    present = value;
    seeded = false;
}

/** Makes the end of a tick the present. There is no chance: how often it is asked depends on the number of shards. */
export function setTickEnd(micros: number): void {
    setPresent(micros, NO_CHANCE);
}

const RealDate = Date;
const toISOString = Function.prototype.call.bind(Date.prototype.toISOString) as unknown as (date: Date) => string;

/** Microseconds since the Unix epoch as RFC 3339, with six digits. */
export function rfc3339(micros: number): string {
    const millis = floor(micros / 1000);
    const rest = `${1000 + micros - millis * 1000}`;
    const text = toISOString(new RealDate(millis)); // 2023-11-14T22:13:20.123Z
    let head = '';
    for (let place = 0; place < text.length - 1; place++) {
        head += text[place];
    }
    return `${head}${rest[1]}${rest[2]}${rest[3]}Z`;
}

function PresentDate(...values: unknown[]): unknown {
    if (new.target === undefined) {
        return new RealDate(clock).toString();
    }
    return construct(RealDate, values.length === 0 ? [clock] : values, new.target);
}
Object.defineProperties(PresentDate, {
    name: { value: 'Date' },
    length: { value: 7 },
    prototype: { value: RealDate.prototype },
    now: { value: () => clock, writable: true, configurable: true },
});
for (const name of ['UTC', 'parse']) {
    Object.defineProperty(PresentDate, name, Object.getOwnPropertyDescriptor(RealDate, name)!);
}
RealDate.prototype.constructor = PresentDate as unknown as DateConstructor;
globalThis.Date = PresentDate as unknown as DateConstructor;

// On prototypes, where methods are found however they are asked for.
function settle(target: object, values: Record<string, unknown>): void {
    for (const [name, value] of Object.entries(values)) {
        Object.defineProperty(target, name, { value, writable: true, configurable: true });
    }
}
const unchanging = { now: () => clock, mark: () => undefined, measure: () => undefined, toJSON: () => ({}) };
const entries = { getEntries: () => [], getEntriesByName: () => [], getEntriesByType: () => [] };
settle(Performance.prototype, { ...unchanging, ...entries, timeOrigin: 0 });
for (const name of ['PerformanceMark', 'PerformanceMeasure', 'PerformanceObserver', 'PerformanceObserverEntryList']) {
    Reflect.deleteProperty(globalThis, name);
}
Object.defineProperty(Event.prototype, 'timeStamp', { get: () => clock });

// A format without a date is one of the present.
const formats = Intl.DateTimeFormat.prototype;
const formatOf = Object.getOwnPropertyDescriptor(formats, 'format')!.get!;
const toParts = formats.formatToParts;
Object.defineProperty(formats, 'format', {
    get(this: Intl.DateTimeFormat) {
        const format = apply(formatOf, this, []);
        return (date?: Date | number) => format(date === undefined ? clock : date);
    },
    configurable: true,
});
formats.formatToParts = function (date?: Date | number) {
    return apply(toParts, this, [date === undefined ? clock : date]);
};

// A file that is given no time is one of the present.
const RealFile = File;
const modified = new WeakMap<object, number>();
const [modifiedOf, setModified] = [WeakMap.prototype.get, WeakMap.prototype.set];
function PresentFile(...values: unknown[]): unknown {
    const file = construct(RealFile, values, new.target ?? RealFile);
    const { lastModified = clock } = (values[2] ?? {}) as { lastModified?: number };
    apply(setModified, modified, [file, +lastModified]);
    return file;
}
Object.defineProperties(PresentFile, { name: { value: 'File' }, prototype: { value: RealFile.prototype } });
Object.setPrototypeOf(PresentFile, Blob);
RealFile.prototype.constructor = PresentFile;
globalThis.File = PresentFile as unknown as typeof File;
Object.defineProperty(RealFile.prototype, 'lastModified', {
    get(this: object) {
        return apply(modifiedOf, modified, [this]) ?? clock;
    },
});

if ('Temporal' in globalThis) {
    // deno-lint-ignore no-explicit-any
    const { Instant, Now } = (globalThis as any).Temporal;
    const instant = () => Instant.fromEpochMilliseconds(clock);
    const zoned = (zone: unknown = 'UTC') => instant().toZonedDateTimeISO(zone);
    Object.assign(Now, {
        instant,
        zonedDateTimeISO: zoned,
        plainDateTimeISO: (zone?: unknown) => zoned(zone).toPlainDateTime(),
        plainDateISO: (zone?: unknown) => zoned(zone).toPlainDate(),
        plainTimeISO: (zone?: unknown) => zoned(zone).toPlainTime(),
    });
}

// Chance starts from the SHA-256 of the transform, the clock in microseconds and the document, of which 128 bits are the
// state of xoshiro128**; only documents that ask for chance pay for it.
const ROUNDS = new Uint32Array(64); // SHA-256's constants: the fractions of cube roots of the first primes
const INITIAL = new Uint32Array(8); // and of their square roots
for (let prime = 2, count = 0; count < 64; prime++) {
    let factor = 2;
    while (factor * factor <= prime && prime % factor !== 0) {
        factor++;
    }
    if (factor * factor > prime) {
        if (count < 8) {
            INITIAL[count] = Math.sqrt(prime) % 1 * 4294967296;
        }
        ROUNDS[count++] = Math.cbrt(prime) % 1 * 4294967296;
    }
}
const words = new Uint32Array(64);
const digest = new Uint32Array(8);
const state = new Uint32Array(4);

function rotated(word: number, bits: number): number {
    return (word >>> bits) | (word << (32 - bits));
}

/** Takes one block of 16 words, which are the first of `words`. */
function mix(): void {
    for (let place = 16; place < 64; place++) {
        const early = words[place - 15];
        const late = words[place - 2];
        words[place] = words[place - 16] + words[place - 7] +
            (rotated(early, 7) ^ rotated(early, 18) ^ (early >>> 3)) +
            (rotated(late, 17) ^ rotated(late, 19) ^ (late >>> 10));
    }
    let a = digest[0], b = digest[1], c = digest[2], d = digest[3];
    let e = digest[4], f = digest[5], g = digest[6], h = digest[7];
    for (let place = 0; place < 64; place++) {
        const first = (h + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + ((e & f) ^ (~e & g)) +
            ROUNDS[place] + words[place]) | 0;
        const second = ((rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
        h = g;
        g = f;
        f = e;
        e = (d + first) | 0;
        d = c;
        c = b;
        b = a;
        a = (first + second) | 0;
    }
    digest[0] += a;
    digest[1] += b;
    digest[2] += c;
    digest[3] += d;
    digest[4] += e;
    digest[5] += f;
    digest[6] += g;
    digest[7] += h;
}

/** SHA-256 of a text's units of 16 bits, the higher byte first, into `digest`. */
function hash(text: string): void {
    for (let place = 0; place < 8; place++) {
        digest[place] = INITIAL[place];
    }
    const { length } = text;
    let block = 0;
    for (let place = 0; place <= length; place += 2) { // the last word has a one behind the text
        const high = place < length ? charCodeAt(text, place) : 0x8000;
        const low = place + 1 < length ? charCodeAt(text, place + 1) : place + 1 === length ? 0x8000 : 0;
        words[block++] = (high << 16) | low;
        if (block === 16) {
            mix();
            block = 0;
        }
    }
    if (block > 14) {
        while (block < 16) {
            words[block++] = 0;
        }
        mix();
        block = 0;
    }
    while (block < 14) {
        words[block++] = 0;
    }
    words[14] = floor(length / 268435456); // bits, of which a unit has 16
    words[15] = length << 4;
    mix();
}

function seed(): void {
    if (present === NO_CHANCE) {
        throw new Error('there is no chance in flush(): it is seeded by a document, and a tick has many');
    }
    hash(`${reader} ${exact} ${stringify(present)}`);
    for (let place = 0; place < 4; place++) {
        state[place] = digest[place];
    }
    if ((state[0] | state[1] | state[2] | state[3]) === 0) {
        state[0] = 1; // all zeros would stay so
    }
    seeded = true;
}

/** 32 bits of chance. */
function word(): number {
    if (!seeded) {
        seed();
    }
    const five = state[1] * 5;
    const value = rotated(five, 25) * 9;
    const shifted = state[1] << 9;
    state[2] ^= state[0];
    state[3] ^= state[1];
    state[1] ^= state[2];
    state[0] ^= state[3];
    state[2] ^= shifted;
    state[3] = rotated(state[3], 21);
    return value >>> 0;
}

function random(): number {
    return ((word() >>> 5) * 67108864 + (word() >>> 6)) / 9007199254740992;
}

function fill<T extends ArrayBufferView>(view: T): T {
    const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
    refuseAhead(bytes.length);
    let bits = 0;
    for (let place = 0; place < bytes.length; place++) {
        bits = place % 4 ? bits >>> 8 : word();
        bytes[place] = bits & 255;
    }
    return view;
}

// Libraries that keep random bytes for later would hand those of one document to another: how many of them are left is a
// matter of what was processed before. So many bytes at once are for that; a module of the author's may ask for them.
const AT_ONCE = 64;
const { captureStackTrace } = Error as unknown as { captureStackTrace?: (target: object) => void };

function refuseAhead(count: number): void {
    if (count <= AT_ONCE || captureStackTrace === undefined) {
        return;
    }
    const held: { stack?: unknown } = {};
    captureStackTrace(held);
    const lines = `${held.stack}`.split('\n');
    const caller = lines.find((line) => !/ext:|node:|\/flowctl-deno-[^/]+\/(?!author\/)/.test(line) && / at /.test(line));
    if (caller !== undefined && !/\/flowctl-deno-[^/]+\/author\//.test(caller)) {
        throw new Error(
            `a library fetches ${count} random bytes at once, of which later documents would be given the rest; ` +
                'make ids with crypto.randomUUID()',
        );
    }
}

function uuid(): string {
    const bytes = fill(new Uint8Array(16));
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
    return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');
}

Math.random = random;
Object.defineProperty(globalThis, Symbol.for('flow.present'), { value: Object.freeze({ fill, random, uuid }) });
settle(Crypto.prototype, { getRandomValues: fill, randomUUID: uuid });

// Keys, and what is signed or sealed with fresh numbers, would differ each time.
const REPEATABLE = ['HMAC', 'RSASSA-PKCS1-V1_5', 'ED25519', 'AES-CBC', 'AES-CTR', 'AES-GCM', 'AES-KW'];
const subtle = SubtleCrypto.prototype as unknown as Record<string, (...values: unknown[]) => Promise<unknown>>;
for (const name of ['generateKey', 'sign', 'encrypt', 'wrapKey', 'encapsulateKey', 'encapsulateBits']) {
    const method = subtle[name];
    const place = name === 'wrapKey' ? 3 : 0;
    settle(subtle, {
        [name]: function (this: SubtleCrypto, ...values: unknown[]) {
            const given = read(values[place]);
            const algorithm = `${typeof given === 'string' ? given : given.name}`.toUpperCase();
            if (method === undefined || name === 'generateKey' || !isRepeatable(algorithm)) {
                return Promise.reject(new Error(`crypto.subtle.${name} of ${algorithm} gives something else each time`));
            }
            values[place] = given;
            return apply(method, this, values);
        },
    });
}

function isRepeatable(algorithm: string): boolean {
    for (let place = 0; place < REPEATABLE.length; place++) {
        if (REPEATABLE[place] === algorithm) {
            return true;
        }
    }
    return false;
}

/** An algorithm as it is now, so that what is looked at is what is used. */
function read(given: unknown): string | Record<string, unknown> {
    if (typeof given !== 'object' || given === null) {
        return `${given}`;
    }
    const copy = construct(Object, []);
    for (const name in given) {
        copy[name] = (given as Record<string, unknown>)[name];
    }
    copy.name = `${copy.name}`;
    return copy;
}

/** Milliseconds since the Unix epoch, of the present document. */
export function presentMillis(): number {
    return clock;
}
