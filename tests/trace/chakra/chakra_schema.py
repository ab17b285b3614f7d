"""Chakra's schema as protobuf descriptors built at run time: the reference for tests of the codec."""

from typing import Any


def messages() -> dict[str, Any]:
    """The message classes by name. Needs protobuf."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="et_def_reference.proto", package="ChakraReference", syntax="proto3")

    def add(message: Any, name: str, number: int, kind: int, *, repeated: bool = False, of: str = "", oneof: int | None = None) -> None:
        label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
        entry = message.field.add(name=name, number=number, type=kind, label=label)
        if of:
            entry.type_name = f".ChakraReference.{of}"
        if oneof is not None:
            entry.oneof_index = oneof

    scalars = {
        "double": (3, field.TYPE_DOUBLE), "float": (5, field.TYPE_FLOAT), "int32": (7, field.TYPE_INT32),
        "int64": (9, field.TYPE_INT64), "uint32": (11, field.TYPE_UINT32), "uint64": (13, field.TYPE_UINT64),
        "sint32": (15, field.TYPE_SINT32), "sint64": (17, field.TYPE_SINT64), "fixed32": (19, field.TYPE_FIXED32),
        "fixed64": (21, field.TYPE_FIXED64), "sfixed32": (23, field.TYPE_SFIXED32), "sfixed64": (25, field.TYPE_SFIXED64),
        "bool": (27, field.TYPE_BOOL), "string": (29, field.TYPE_STRING), "bytes": (31, field.TYPE_BYTES),
    }  # fmt: skip
    attribute = file.message_type.add(name="AttributeProto")
    attribute.oneof_decl.add(name="value")
    add(attribute, "name", 1, field.TYPE_STRING)
    add(attribute, "doc_string", 2, field.TYPE_STRING)
    for kind, (number, code) in scalars.items():
        holder = file.message_type.add(name=f"{kind.capitalize()}List")
        add(holder, "values", 1, code, repeated=True)
        add(attribute, f"{kind}_val", number, code, oneof=0)
        add(attribute, f"{kind}_list", number + 1, field.TYPE_MESSAGE, of=holder.name, oneof=0)
    metadata = file.message_type.add(name="GlobalMetadata")
    add(metadata, "version", 1, field.TYPE_STRING)
    add(metadata, "attr", 2, field.TYPE_MESSAGE, repeated=True, of="AttributeProto")
    io = file.message_type.add(name="IOInfo")
    for number, name in enumerate(("values", "shapes", "types"), 1):
        add(io, name, number, field.TYPE_STRING)
    node = file.message_type.add(name="Node")
    add(node, "id", 1, field.TYPE_UINT64)
    add(node, "name", 2, field.TYPE_STRING)
    add(node, "type", 3, field.TYPE_INT32)
    add(node, "ctrl_deps", 4, field.TYPE_UINT64, repeated=True)
    add(node, "data_deps", 5, field.TYPE_UINT64, repeated=True)
    add(node, "start_time_micros", 6, field.TYPE_UINT64)
    add(node, "duration_micros", 7, field.TYPE_UINT64)
    add(node, "inputs", 8, field.TYPE_MESSAGE, of="IOInfo")
    add(node, "outputs", 9, field.TYPE_MESSAGE, of="IOInfo")
    add(node, "attr", 10, field.TYPE_MESSAGE, repeated=True, of="AttributeProto")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ChakraReference.{name}"))
        for name in ("GlobalMetadata", "Node", "AttributeProto")
    }
