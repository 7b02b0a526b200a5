// Time and chance as the document has them: processing it again, at any later time, gives the same (law L1).
// Imported for its effect, before the author's module is.

const { floor, imul } = Math;
const { stringify } = JSON;
const { apply, construct } = Reflect; // as a module may replace them, to see what they are given
const NO_CHANCE = Symbol();

let clock = 0; // milliseconds
let present: unknown = null;
let seeded = false;
let state = 0;

/** Makes a document the present one: `Date` shows `micros`, and chance starts from it anew. */
export function setPresent(micros: number, value: unknown): void {
    clock = floor(micros / 1000);
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

// FNV-1a of the document and its clock starts Mulberry32; only documents that ask for chance pay for it.
function seed(): void {
    if (present === NO_CHANCE) {
        throw new Error('there is no chance in flush(): it is seeded by a document, and a tick has many');
    }
    const text = stringify(present) + clock;
    state = 0x811c9dc5;
    for (let place = 0; place < text.length; place++) {
        state = imul(state ^ text.charCodeAt(place), 0x01000193);
    }
    seeded = true;
}

function random(): number {
    if (!seeded) {
        seed();
    }
    state = (state + 0x6d2b79f5) | 0;
    let mixed = imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
}

function fill<T extends ArrayBufferView>(view: T): T {
    const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
    for (let place = 0; place < bytes.length; place++) {
        bytes[place] = random() * 256;
    }
    return view;
}

function uuid(): string {
    const bytes = fill(new Uint8Array(16));
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
    return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');
}

Math.random = random;
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

export { fill, random, uuid };

/** Milliseconds since the Unix epoch, of the present document. */
export function presentMillis(): number {
    return clock;
}
