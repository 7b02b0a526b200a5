import { Document, IDerivation, SourceFromOrders, SourceFromOrdersAssembly } from 'flow/assemblies/demand.ts';

// An order is published as the parts it needs, of every depth; the schema sums them up.
export class Derivation extends IDerivation {
    fromOrders(read: { doc: SourceFromOrders }): Document[] {
        const { assembly, quantity } = read.doc;
        const [whole, ...parts] = needed(assembly, quantity);
        return [{ ...whole, orders: 1 }, ...parts];
    }
}

function needed(assembly: SourceFromOrdersAssembly, times: number): Document[] {
    const count = times * (assembly.count ?? 1);
    const parts = (assembly.parts ?? []).flatMap((part) => needed(part, count));
    return [{ part: assembly.part, needed: count }, ...parts];
}
