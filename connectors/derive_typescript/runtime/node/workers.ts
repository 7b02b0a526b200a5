// Libraries find this module of Node's whatever stands for it, so no worker can be made of its class.

import { Worker } from 'node:worker_threads';

Object.setPrototypeOf(Worker, function () {
    throw new Error("'Worker' of node:worker_threads would show more than documents: real time, chance or the machine");
});
Object.preventExtensions(Worker);
