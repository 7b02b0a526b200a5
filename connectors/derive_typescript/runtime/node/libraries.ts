// Libraries from npm do not see the import map: their imports of Node's modules are led to the guards here. What they
// `require` is what the guards have changed. Imported for its effect, once the guards are there.
// deno-lint-ignore-file no-explicit-any

import * as nodeModule from 'node:module';

const guards = new Map<string, string>([/* each module, and the file of its guard */]);
const folder = new URL('.', import.meta.url).href;
(nodeModule as any).registerHooks({
    resolve(specifier: string, context: any, next: (specifier: string, context: any) => unknown) {
        const guard = guards.get(specifier.startsWith('node:') ? specifier.slice(5) : specifier);
        const required = context.conditions?.includes('require');
        if (guard === undefined || required || context.parentURL?.startsWith(folder)) {
            return next(specifier, context);
        }
        return { url: folder + guard, shortCircuit: true };
    },
});
