import { Document, IDerivation, SourceFromClicks } from 'flow/sessions/sessions.ts';

const GAP = 30 * 60 * 1000; // milliseconds

// Where a user is: the number of the session, and the time of its last click.
type Place = { session: number; last: string };
type State = { users?: Record<string, Place> };

export class Derivation extends IDerivation {
    users: Map<string, Place>;
    changed = new Map<string, Place>();

    // At the beginning of a transaction, with what earlier ones have left.
    constructor(open: { state: State }) {
        super(open);
        this.users = new Map(Object.entries(open.state.users ?? {}));
    }

    fromClicks(read: { doc: SourceFromClicks }): Document[] {
        const { user, page, at } = read.doc;
        const place = this.users.get(user);
        let session = place?.session ?? 1;
        if (place !== undefined && Date.parse(at) - Date.parse(place.last) > GAP) {
            session += 1;
        }
        this.users.set(user, { session, last: at });
        this.changed.set(user, { session, last: at });
        return [{ user, session, begin: at, end: at, pages: [page] }];
    }

    // At its end: what is returned is committed together with the documents, or not at all.
    override startCommit() {
        const updated: State = { users: Object.fromEntries(this.changed) };
        this.changed.clear();
        return { state: { updated, mergePatch: true } };
    }

    // Between catalog tests.
    override reset() {
        this.users.clear();
        this.changed.clear();
    }
}
