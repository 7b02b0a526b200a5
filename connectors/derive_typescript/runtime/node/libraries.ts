// Libraries from npm do not see the import map: their imports of Node's modules are led to the guards here. What they
// `require` is what the guards have changed.
// deno-lint-ignore-file no-explicit-any

import * as nodeModule from 'node:module';
import { allowBuiltins } from '../absent.ts';

/** From now on, modules that are guarded are found as their guards, by files of this folder. */
export function redirect(guards: Map<string, string>): void {
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
    allowBuiltins();
}
