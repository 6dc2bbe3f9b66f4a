//! Pins `proto/` to the field tables of the specification: every message, field number, name and type, every enum
//! value (SPEC v0.17.0, INT-06). `schema.txt` was transcribed from the tables, not from `proto/`; enums and their values
//! have the names of the official schema (AMB-40).

use std::collections::BTreeMap;

use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto,
    field_descriptor_proto::{Label, Type},
};

const TABLES: &str = include_str!("schema.txt");
const PACKAGE: &str = ".opamp.proto.v1.";

#[test]
fn the_schema_is_that_of_the_specification() {
    let files = protox::compile(["opamp/v1/opamp.proto"], ["proto"]).unwrap().file;
    let mut blocks = BTreeMap::new();
    for file in &files {
        assert_eq!((file.package(), file.syntax()), ("opamp.proto.v1", "proto3"), "{}", file.name());
        blocks.extend(file.message_type.iter().map(render_message));
        blocks.extend(file.enum_type.iter().map(render_enum));
    }
    let rendered: String = blocks.into_values().collect();
    for (line, (ours, theirs)) in rendered.lines().zip(TABLES.lines()).enumerate() {
        assert_eq!(ours, theirs, "line {} of schema.txt", line + 1);
    }
    assert_eq!(rendered.lines().count(), TABLES.lines().count());
}

fn render_message(message: &DescriptorProto) -> (String, String) {
    let title = format!("message {}", message.name());
    assert!(message.enum_type.is_empty(), "{title}: enums are at the top level (AMB-40)");
    let fields: String = message.field.iter().map(|field| render_field(message, field)).collect();
    (title.clone(), format!("{title}\n{fields}"))
}

fn render_field(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    assert!(!field.proto3_optional(), "{}: no field is declared optional", field.name());
    let oneof = field.oneof_index.map_or_else(String::new, |index| {
        let declaration = &message.oneof_decl[usize::try_from(index).unwrap()];
        format!(" (oneof {})", declaration.name())
    });
    format!("  {} {}: {}{oneof}\n", field.number(), field.name(), type_of(message, field))
}

fn type_of(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let named = |name: &str| name.strip_prefix(PACKAGE).unwrap().to_owned();
    let name = match field.r#type() {
        Type::Message | Type::Enum => named(field.type_name()),
        Type::Bytes => "bytes".into(),
        Type::String => "string".into(),
        Type::Bool => "bool".into(),
        Type::Uint64 => "uint64".into(),
        Type::Int64 => "int64".into(),
        Type::Fixed64 => "fixed64".into(),
        Type::Double => "double".into(),
        other => panic!("no field of the specification is of type {other:?}"),
    };
    if field.label() != Label::Repeated {
        return name;
    }
    let entry = message.nested_type.iter().find(|nested| name.ends_with(&format!(".{}", nested.name())));
    match entry {
        Some(entry) => {
            let [key, value] = &entry.field[..] else { panic!("{}: a map entry has a key and a value", entry.name()) };
            format!("map<{}, {}>", type_of(entry, key), type_of(entry, value))
        }
        None => format!("repeated {name}"),
    }
}

fn render_enum(values: &EnumDescriptorProto) -> (String, String) {
    let title = format!("enum {}", values.name());
    let lines: Vec<_> = values.value.iter().map(|value| format!("  {} {}\n", value.number(), value.name())).collect();
    (title.clone(), format!("{title}\n{}", lines.concat()))
}
