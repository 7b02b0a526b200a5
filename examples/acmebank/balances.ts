import { Document, IDerivation, SourceFromOutcomes } from 'flow/acmeBank/balances.ts';

// Every approved transfer moves two balances; the schema sums the moves up.
export class Derivation extends IDerivation {
    fromOutcomes(read: { doc: SourceFromOutcomes }): Document[] {
        const { sender, recipient, amount } = read.doc;
        return [
            { user: sender, balance: -amount },
            { user: recipient, balance: amount },
        ];
    }
}
