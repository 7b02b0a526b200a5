import { closest, distance } from 'npm:fastest-levenshtein@1.0.16';
import { Document, IDerivation, SourceFromAddresses } from 'flow/spelling/corrected.ts';

const CITIES = ['Amsterdam', 'Athens', 'Berlin', 'København', 'Lisbon', 'Oslo', 'Vienna', 'Warsaw'];
const MOST = 2; // letters

export class Derivation extends IDerivation {
    fromAddresses(read: { doc: SourceFromAddresses }): Document[] {
        const { id, city: written } = read.doc;
        const nearest = closest(written, CITIES);
        const letters = distance(written, nearest);
        return [{ id, written, city: letters <= MOST ? nearest : null, distance: letters }];
    }
}
