"""A connector that is served, and calls of its methods."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import grpc
from patience import PATIENCE_SECONDS
from raw_client import DOCUMENT, VALUES, Stream, collection, shuffle
from subject import Subject

from derive.protocol.stubs import flow_pb2
from derive.protocol.stubs import materialize_pb2 as pb

LARGE = (("grpc.max_receive_message_length", 1 << 26), ("grpc.max_send_message_length", 1 << 26))


class Client:
    """Calls the methods of one served connector."""

    def __init__(self, subject: Subject, address: str) -> None:
        self.subject = subject
        self.address = address
        self.channel = grpc.insecure_channel(address, options=LARGE)

    def _call(self, method: str, request: Any, response: Any) -> Any:
        call = self.channel.unary_unary(
            f"/materialize.Driver/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        )
        return call(request, timeout=PATIENCE_SECONDS)

    def spec(self) -> pb.SpecResponse:
        response: pb.SpecResponse = self._call("Spec", pb.SpecRequest(), pb.SpecResponse)
        return response

    def validate(self, tables: Sequence[str], *, config: Any = None, delta: bool = False) -> pb.ValidateResponse:
        request = pb.ValidateRequest(materialization="test/materialization", endpoint_spec_json=self._config(config))
        for table in tables:
            request.bindings.add(
                resource_spec_json=json.dumps(self.subject.resource(table, delta)), collection=collection()
            )
        response: pb.ValidateResponse = self._call("Validate", request, pb.ValidateResponse)
        return response

    def _config(self, config: Any) -> str:
        return json.dumps(self.subject.config if config is None else config)

    def materialization(
        self, tables: Sequence[str] = ("things",), *, name: str = "test/materialization", delta: bool | None = None
    ) -> flow_pb2.MaterializationSpec:
        """A materialization of the collection into tables, of every field that the connector takes."""
        with_delta = not self.subject.loads if delta is None else delta
        spec = flow_pb2.MaterializationSpec(materialization=name, endpoint_spec_json=self._config(None))
        for table, validated in zip(tables, self.validate(tables, delta=with_delta).bindings, strict=True):
            refused = {pb.Constraint.FIELD_FORBIDDEN, pb.Constraint.UNSATISFIABLE}
            taken = {field for field, constraint in validated.constraints.items() if constraint.type not in refused}
            spec.bindings.add(
                resource_spec_json=json.dumps(self.subject.resource(table, with_delta)),
                resource_path=validated.resource_path,
                collection=collection(),
                field_selection=flow_pb2.FieldSelection(
                    keys=["id", "name"],
                    values=[field for field in VALUES if field in taken],
                    document=DOCUMENT if DOCUMENT in taken else "",
                ),
                delta_updates=validated.delta_updates,
                shuffle=shuffle("test/things"),
            )
        return spec

    def apply(self, spec: flow_pb2.MaterializationSpec, version: str = "v1", *, dry_run: bool = False) -> str:
        request = pb.ApplyRequest(materialization=spec, version=version, dry_run=dry_run)
        response: pb.ApplyResponse = self._call("Apply", request, pb.ApplyResponse)
        return response.action_description

    def stream(self, first: pb.TransactionRequest, values: Sequence[str] = ()) -> Stream:
        """A stream that begins with a message, of a materialization with these fields beside the key."""
        call = self.channel.stream_stream(
            "/materialize.Driver/Transactions",
            request_serializer=pb.TransactionRequest.SerializeToString,
            response_deserializer=pb.TransactionResponse.FromString,
        )
        return Stream(call, first, values)

    def open(
        self,
        spec: flow_pb2.MaterializationSpec,
        *,
        begin: int = 0,
        end: int = 0xFFFF_FFFF,
        driver_checkpoint: bytes = b"",
    ) -> tuple[Stream, bytes]:
        """A stream that is open, and the checkpoint that the endpoint has."""
        first = opening(spec, begin=begin, end=end, driver_checkpoint=driver_checkpoint)
        stream = self.stream(first, spec.bindings[0].field_selection.values if spec.bindings else ())
        return stream, stream.expect("opened").flow_checkpoint

    def ready(self, tables: Sequence[str] = ("things",)) -> Stream:
        """An open stream of a materialization into tables, for which the endpoint was made ready."""
        spec = self.materialization(tables)
        self.apply(spec)
        return self.open(spec)[0]


def opening(
    spec: flow_pb2.MaterializationSpec,
    *,
    version: str = "v1",
    begin: int = 0,
    end: int = 0xFFFF_FFFF,
    driver_checkpoint: bytes = b"",
) -> pb.TransactionRequest:
    return pb.TransactionRequest(
        open=pb.TransactionRequest.Open(
            materialization=spec,
            version=version,
            key_begin=begin,
            key_end=end,
            driver_checkpoint_json=driver_checkpoint,
        )
    )
