// Published documents as columns: what documents that have the same properties hold, property by property, so that
// nobody has to find out again that they are alike. What cannot be columns is written as documents, as it always can be.
// deno-lint-ignore-file no-explicit-any

import { check, MOST_CHARACTERS, written } from './documents.ts';

const { stringify } = JSON;
const { isArray } = Array;
const { getPrototypeOf, keys } = Object;
const ordinary = Object.prototype;
const AROUND = 20; // about how many characters a value takes beside those of a text

/** What methods published, result by result. */
export interface Published {
    /** About how many characters the answer has so far. */
    readonly size: number;

    /** Takes one result; false, and nothing is taken, if it cannot be part of this. */
    take(result: any): boolean;

    /** All that was taken, as the lines of an answer. */
    text(): string;
}

/** What was published, as documents; anything that is valid can be part of it. */
export class Documents implements Published {
    #text = '';

    get size(): number {
        return this.#text.length;
    }

    take(result: any): boolean {
        this.add(written(result));
        return true;
    }

    add(text: string): void {
        this.#text += (this.#text === '' ? '[' : ',') + text;
    }

    text(): string {
        return this.#text + ']';
    }
}

type Kind = 'string' | 'number' | 'json';

/** Values of one property: all texts, all numbers, or the JSON texts of whatever they are. */
class Column {
    values: any[] = [];
    kind: Kind | undefined;
    constructor(readonly name: string) {}

    /** Puts a value at a place, behind all others; returns about how long it is, or -1 if it cannot be there. */
    put(place: number, value: any): number {
        const kind = typeof value;
        if (kind === this.kind && (kind === 'string' || value - value === 0)) {
            this.values[place] = value;
            return kind === 'string' ? value.length : 0;
        }
        return this.#putOther(place, value, kind);
    }

    #putOther(place: number, value: any, kind: string): number {
        if (this.kind === undefined && (kind === 'string' || (kind === 'number' && value - value === 0))) {
            this.kind = kind as Kind;
            return this.put(place, value);
        }
        if (!isPlain(value)) {
            return -1;
        }
        if (value !== null && typeof value === 'object' && value.toJSON !== undefined) { // like a Date
            const told = value.toJSON(this.name);
            return typeof told === 'string' ? this.put(place, told) : -1;
        }
        const text = stringify(value);
        if (this.kind !== 'json') {
            for (let other = 0; other < place; other++) {
                this.values[other] = stringify(this.values[other]);
            }
            this.kind = 'json';
        }
        this.values[place] = text;
        return text.length;
    }

    /** The JSON text of one value. */
    at(place: number): string {
        return this.kind === 'json' ? this.values[place] : stringify(this.values[place]);
    }

    /** The JSON texts of the first values, as an array. */
    text(count: number): string {
        // A module may have changed what JSON makes of arrays.
        if (this.kind !== 'json' && (this.values as any).toJSON === undefined) {
            this.values.length = count;
            return stringify(this.values);
        }
        let text = '[';
        for (let place = 0; place < count; place++) {
            text += place ? ',' + this.at(place) : this.at(place);
        }
        return text + ']';
    }
}

/** Whether JSON certainly can hold a value; whoever finds out why not tells it. */
function isPlain(value: any): boolean {
    try {
        check(value, 1);
        return true;
    } catch {
        return false;
    }
}

/** What was published, as columns. */
export class Columns implements Published {
    #columns: Column[] = [];
    #counts: number[] = [];
    #results = 0;
    #documents = 0;
    #size = 0;

    get size(): number {
        return this.#size;
    }

    take(result: any): boolean {
        if (!isArray(result)) {
            return false;
        }
        const { length } = result;
        let size = 0;
        for (let place = 0; place < length; place++) {
            const added = this.#put(this.#documents + place, result[place]);
            if (added < 0) {
                return false;
            }
            size += added;
        }
        this.#counts[this.#results++] = length;
        this.#documents += length;
        this.#size += size;
        return true;
    }

    #put(place: number, document: any): number {
        if (typeof document !== 'object' || document === null || document.toJSON !== undefined) {
            return -1;
        }
        const prototype = getPrototypeOf(document);
        if (prototype !== ordinary && prototype !== null) {
            return -1;
        }
        const names = keys(document);
        const columns = this.#columns;
        if (place === 0) {
            columns.length = 0;
            for (let index = 0; index < names.length; index++) {
                columns[index] = new Column(names[index]);
            }
        }
        if (names.length !== columns.length || names.length === 0) {
            return -1;
        }
        let size = 0;
        for (let index = 0; index < names.length; index++) {
            const name = names[index];
            const column = columns[index];
            const added = column.name === name ? column.put(place, document[name]) : -1;
            if (added < 0) {
                return -1;
            }
            size += AROUND + added;
        }
        return size > MOST_CHARACTERS ? -1 : size;
    }

    text(): string {
        let names = '';
        let lines = '';
        let counts = '';
        for (let index = 0; this.#documents > 0 && index < this.#columns.length; index++) {
            const column = this.#columns[index];
            names += (index ? ',' : '') + stringify(column.name);
            lines += '\n' + column.text(this.#documents);
        }
        for (let result = 0; result < this.#results; result++) {
            counts += result ? ',' + this.#counts[result] : this.#counts[result];
        }
        return `{"columns":[${names}],"counts":[${counts}]}${lines}`;
    }

    /** The same as documents. */
    documents(): Documents {
        const documents = new Documents();
        let place = 0;
        for (let result = 0; result < this.#results; result++) {
            let text = '[';
            for (const end = place + this.#counts[result]; place < end; place++) {
                text += text === '[' ? this.#document(place) : ',' + this.#document(place);
            }
            documents.add(text + ']');
        }
        return documents;
    }

    #document(place: number): string {
        let text = '{';
        for (let index = 0; index < this.#columns.length; index++) {
            const column = this.#columns[index];
            text += `${index ? ',' : ''}${stringify(column.name)}:${column.at(place)}`;
        }
        return text + '}';
    }
}
