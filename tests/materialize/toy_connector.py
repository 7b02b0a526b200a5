"""A materialize connector for tests: a program that does what its endpoint's configuration says.

Run as a program it prints its address when it is ready; `TOY` in its environment makes it fail in some way before that.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from derive.protocol.driver import TRANSPORT_OPTIONS, driver_handler
from derive.protocol.stubs import materialize_pb2 as pb

ENDPOINT: dict[str, Any] = {
    "type": "object",
    "required": ["path"],
    "properties": {
        "path": {"type": "string", "pattern": "^[a-z.]+$"},
        "key": {"type": "string", "secret": True},
        "mode": {"enum": ["", "refuse", "die", "gone", "few", "forbid", "same"]},
        "require": {"type": "string"},
    },
    "additionalProperties": False,
}
RESOURCE: dict[str, Any] = {
    "type": "object",
    "required": ["table"],
    "properties": {"table": {"type": "string"}, "delta_updates": {"type": "boolean"}},
    "additionalProperties": False,
}


class Toy:
    """Every field is recommended; the document is required."""

    def spec(self, request: pb.SpecRequest, context: grpc.ServicerContext) -> pb.SpecResponse:
        print("asked for its schemas", file=sys.stderr, flush=True)
        return pb.SpecResponse(
            endpoint_spec_schema_json=json.dumps(ENDPOINT),
            resource_spec_schema_json=json.dumps(RESOURCE),
            documentation_url="https://toys.example",
        )

    def validate(self, request: pb.ValidateRequest, context: grpc.ServicerContext) -> pb.ValidateResponse:
        config = json.loads(request.endpoint_spec_json)
        mode = config.get("mode")
        if mode == "refuse":
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{config['key']} does not open {config['path']}")
        if mode == "gone":
            context.abort(
                grpc.StatusCode.UNAVAILABLE, f"nothing is at {config['path']}, and {config['key']} is no help"
            )
        if mode == "die":
            print(f"dying with {config['key']}", file=sys.stderr, flush=True)
            os._exit(3)
        bindings = [] if mode == "few" else [self._binding(binding, config) for binding in request.bindings]
        return pb.ValidateResponse(bindings=bindings)

    def _binding(self, binding: pb.ValidateRequest.Binding, config: Any) -> pb.ValidateResponse.Binding:
        resource = json.loads(binding.resource_spec_json)
        kinds = {
            projection.field: pb.Constraint.LOCATION_REQUIRED
            if projection.is_primary_key or not projection.ptr
            else pb.Constraint.LOCATION_RECOMMENDED
            for projection in binding.collection.projections
        }
        constraints = {name: pb.Constraint(type=kind, reason="it is a toy") for name, kind in kinds.items()}
        if config.get("mode") == "forbid":
            constraints["who"] = pb.Constraint(type=pb.Constraint.FIELD_FORBIDDEN, reason="nobody is to be known")
        return pb.ValidateResponse.Binding(
            constraints=constraints,
            resource_path=["same" if config.get("mode") == "same" else resource["table"]],
            delta_updates=resource.get("delta_updates", False),
        )

    def apply(self, request: pb.ApplyRequest, context: grpc.ServicerContext) -> pb.ApplyResponse:
        config = json.loads(request.materialization.endpoint_spec_json)
        if config.get("mode") == "refuse":
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{config['key']} may not")
        tables = ", ".join(binding.resource_path[0] for binding in request.materialization.bindings)
        verb = "would create" if request.dry_run else "created"
        return pb.ApplyResponse(action_description=f"{verb} {tables} in {config['path']} by {config.get('key')}\n")

    def transactions(
        self, requests: Iterator[pb.TransactionRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.TransactionResponse]:
        raise NotImplementedError


def serve() -> tuple[grpc.Server, str]:
    """A server, and its address."""
    server = grpc.server(ThreadPoolExecutor(4), options=TRANSPORT_OPTIONS)
    server.add_generic_rpc_handlers((driver_handler(Toy()),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, f"127.0.0.1:{port}"


def main() -> None:
    how = os.environ.get("TOY", "")
    if how.startswith("fail"):
        print(f"cannot play\nwith {how}", file=sys.stderr, flush=True)
        sys.exit(7)
    if how == "sleep":
        time.sleep(2)
        sys.exit(1)
    if how == "slow":
        print("still thinking", file=sys.stderr, flush=True)
        time.sleep(60)
    server, address = serve()
    print("a toy is ready", flush=True)
    print(address, flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
