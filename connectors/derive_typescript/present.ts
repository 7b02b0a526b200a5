// Time and chance as the document has them: processing it again, at any later time, gives the same (law L1).
// Imported for its effect, before the author's module is.

let clock = 0; // milliseconds
let present: unknown;
let seeded = false;
let state = 0;

/** Makes a document the present one: `Date` shows `micros`, and chance starts from it anew. */
export function setPresent(micros: number, value: unknown): void {
    clock = Math.floor(micros / 1000);
    present = value;
    seeded = false;
}

const RealDate = Date;

/** Microseconds since the Unix epoch as RFC 3339, with six digits. */
export function rfc3339(micros: number): string {
    const millis = Math.floor(micros / 1000);
    const rest = String(micros - millis * 1000).padStart(3, '0');
    return `${new RealDate(millis).toISOString().slice(0, -1)}${rest}Z`;
}

function PresentDate(...values: unknown[]): unknown {
    if (new.target === undefined) {
        return new RealDate(clock).toString();
    }
    return Reflect.construct(RealDate, values.length === 0 ? [clock] : values, new.target);
}
Object.defineProperties(PresentDate, {
    name: { value: 'Date' },
    length: { value: 7 },
    prototype: { value: RealDate.prototype },
    now: { value: () => clock },
});
Object.setPrototypeOf(PresentDate, RealDate); // `Date.UTC` and `Date.parse`
RealDate.prototype.constructor = PresentDate as unknown as DateConstructor;
globalThis.Date = PresentDate as unknown as DateConstructor;
Object.defineProperty(performance, 'now', { value: () => clock });

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
    const text = JSON.stringify(present) + clock;
    state = 0x811c9dc5;
    for (let place = 0; place < text.length; place++) {
        state = Math.imul(state ^ text.charCodeAt(place), 0x01000193);
    }
    seeded = true;
}

function random(): number {
    if (!seeded) {
        seed();
    }
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
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
Object.defineProperty(crypto, 'getRandomValues', { value: fill });
Object.defineProperty(crypto, 'randomUUID', { value: uuid });
