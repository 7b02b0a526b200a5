// Published documents as JSON text, which says all that they are, or an error that says what JSON cannot hold.
// JSON itself would leave functions out without a word, and write `NaN` as `null`.
// deno-lint-ignore-file no-explicit-any

const { stringify } = JSON;
const { isArray } = Array;
const { getPrototypeOf, hasOwn } = Object;
const ordinary = Object.prototype;
const tagOf = Function.prototype.call.bind(Object.prototype.toString) as (value: unknown) => string;
export const MOST_CHARACTERS = 64 << 20; // of a document
const DEEPEST = 250;
const getTime = Function.prototype.call.bind(Date.prototype.getTime) as (value: Date) => number;

/** A text whose halves of characters are replaced, as JSON in UTF-8 cannot hold them. */
export const wellFormed = Function.prototype.call.bind(
    (String.prototype as unknown as { toWellFormed(): string }).toWellFormed,
) as unknown as (text: string) => string;

/** What a method published, as a JSON array; written at once, as the author may change an object for the next document. */
export function written(result: any): string {
    if (!isArray(result)) {
        throw new TypeError(`the method must return an array of documents, and returned ${kindOf(result)}`);
    }
    let text = '[';
    for (let place = 0; place < result.length; place++) {
        const document = result[place];
        const each = stringify(document);
        if (typeof each !== 'string' || each[0] !== '{') {
            throw new TypeError(`it published ${each ? kindOfText(each) : kindOf(document)}, which is no document`);
        }
        if (each.length > MOST_CHARACTERS) {
            throw new RangeError(`it published a document of ${each.length} characters; ${MOST_CHARACTERS} at most`);
        }
        check(document, 0);
        text += place ? ',' + each : each;
    }
    return text + ']';
}

/** A state as JSON text. */
export function writtenState(state: unknown): string {
    const text = stringify(state);
    if (typeof text !== 'string') {
        throw new TypeError(`startCommit must return a state that is JSON, and returned ${kindOf(state)}`);
    }
    check(state, 0, STATE);
    return text;
}

type Path = { name: string | number; within: Path | undefined };

const PUBLISHED: Path = { name: 'the published document', within: undefined };
const STATE: Path = { name: 'the state', within: undefined };

/** Refuses what JSON cannot hold; a property that is `undefined` is one that is not there. */
export function check(value: any, depth: number, path = PUBLISHED): void {
    switch (typeof value) {
        case 'string':
        case 'boolean':
            return;
        case 'number':
            if (value - value !== 0) {
                throw new TypeError(`${pointer(path)} is ${value}, which JSON cannot hold`);
            }
            return;
        case 'object':
            if (value === null) {
                return;
            }
            break;
        default:
            throw new TypeError(`${pointer(path)} is ${kindOf(value)}, which JSON cannot hold`);
    }
    if (depth >= DEEPEST) {
        throw new RangeError(`a published value is nested more than ${DEEPEST} deep`);
    }
    if (typeof value.toJSON === 'function') {
        checkTold(value, depth, path);
        return;
    }
    if (isArray(value)) {
        for (let place = 0; place < value.length; place++) {
            check(value[place], depth + 1, { name: place, within: path });
        }
        return;
    }
    const prototype = getPrototypeOf(value);
    if (prototype !== ordinary && prototype !== null) {
        const tag = tagOf(value);
        if (tag !== '[object Object]') {
            throw new TypeError(`${pointer(path)} is a ${tag.slice(8, -1)}, which JSON cannot hold`);
        }
    }
    for (const name in value) {
        const each = value[name];
        const kind = typeof each;
        if (kind === 'string' || kind === 'undefined' || kind === 'boolean' || (kind === 'number' && each - each === 0)) {
            continue;
        }
        if (each !== null && hasOwn(value, name)) {
            check(each, depth + 1, { name, within: path });
        }
    }
}

/** Refuses what a value says of itself that it is, like a Date, if JSON cannot hold that. */
function checkTold(value: any, depth: number, path: Path): void {
    if (tagOf(value) === '[object Date]' && getTime(value) !== getTime(value)) {
        throw new TypeError(`${pointer(path)} is an invalid Date, which JSON cannot hold`);
    }
    const told = value.toJSON(`${path.name}`);
    if (told === undefined) {
        throw new TypeError(`${pointer(path)} is undefined, as its toJSON says, which JSON cannot hold`);
    }
    if (typeof told !== 'object' || told === null) {
        check(told, depth, path);
    } else if (told !== value) {
        check(told, depth + 1, path);
    }
}

function pointer(path: Path): string {
    let text = '';
    let each = path;
    for (; each.within !== undefined; each = each.within) {
        text = `/${each.name}${text}`;
    }
    return text === '' ? `${each.name}` : `${text} of ${each.name}`;
}

function kindOf(value: unknown): string {
    if (value === null || value === undefined) {
        return String(value);
    }
    const kind = typeof value;
    return kind === 'object' ? kind : `a ${kind}`;
}

/** The kind of a JSON text that is no object; the text itself is not shown, as it may hold what is to be redacted. */
function kindOfText(text: string): string {
    switch (text[0]) {
        case '"':
            return 'a string';
        case '[':
            return 'an array';
        case 'n':
            return 'null';
        case 't':
        case 'f':
            return 'a boolean';
        default:
            return 'a number';
    }
}
