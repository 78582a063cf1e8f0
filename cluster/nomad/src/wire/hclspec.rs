//! The schema of a configuration (plugins/shared/hclspec/hcl_spec.proto): of its blocks those that we send.

use std::collections::BTreeMap;

/// A part of a schema.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Spec {
    #[prost(oneof = "Block", tags = "1, 3, 9, 10")]
    pub block: Option<Block>,
}

/// What a part of a schema is.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Block {
    #[prost(message, tag = "1")]
    Object(Object),
    #[prost(message, tag = "3")]
    Attr(Attr),
    #[prost(message, tag = "9")]
    Default(Box<DefaultSpec>),
    #[prost(message, tag = "10")]
    Literal(Literal),
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Object {
    /// What stands in it, by name.
    #[prost(btree_map = "string, message", tag = "1")]
    pub attributes: BTreeMap<String, Spec>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Attr {
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its type, as an expression of HCL.
    #[prost(string, tag = "2")]
    pub r#type: String,
    /// Whether it must be there.
    #[prost(bool, tag = "3")]
    pub required: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DefaultSpec {
    #[prost(message, optional, boxed, tag = "1")]
    pub primary: Option<Box<Spec>>,
    /// What counts where it is not.
    #[prost(message, optional, boxed, tag = "2")]
    pub default: Option<Box<Spec>>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Literal {
    /// It, as an expression of HCL.
    #[prost(string, tag = "1")]
    pub value: String,
}

impl Spec {
    /// An object of these parts.
    #[must_use]
    pub fn object(attributes: BTreeMap<String, Spec>) -> Spec {
        Block::Object(Object { attributes }).into()
    }

    /// An attribute that may be left out; then it is null.
    #[must_use]
    pub fn attribute(name: &str, r#type: &str) -> Spec {
        let (name, r#type) = (name.to_owned(), r#type.to_owned());
        let attr = Attr {
            name,
            r#type,
            required: false,
        };
        Block::Attr(attr).into()
    }

    /// The same, with the value that it has where it is left out.
    #[must_use]
    pub fn or(self, literal: &str) -> Spec {
        let value = literal.to_owned();
        let default = Spec::from(Block::Literal(Literal { value }));
        let with_default = DefaultSpec {
            primary: Some(Box::new(self)),
            default: Some(Box::new(default)),
        };
        Block::Default(Box::new(with_default)).into()
    }
}

impl From<Block> for Spec {
    fn from(block: Block) -> Spec {
        Spec { block: Some(block) }
    }
}
