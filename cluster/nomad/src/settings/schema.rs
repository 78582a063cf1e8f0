//! The schema by which Nomad checks the `config` block: it rejects wrong types and unknown names.

use super::table::TABLE;
use crate::wire::hclspec::spec::Block;
use crate::wire::hclspec::{Attr, Default, Literal, Object, Spec};

pub fn build_schema() -> Spec {
    let attributes = TABLE.iter().map(|setting| {
        let attribute = block_spec(Block::Attr(Attr {
            name: setting.name.to_owned(),
            r#type: setting.kind.to_owned(),
            required: false,
        }));
        let attribute = match setting.default {
            Some(literal) => with_default(attribute, literal.to_owned()),
            None => attribute,
        };
        (setting.name.to_owned(), attribute)
    });
    block_spec(Block::Object(Object { attributes: attributes.collect() }))
}

fn with_default(attribute: Spec, value: String) -> Spec {
    let literal = block_spec(Block::Literal(Literal { value }));
    block_spec(Block::Default(Box::new(Default {
        primary: Some(Box::new(attribute)),
        default: Some(Box::new(literal)),
    })))
}

fn block_spec(block: Block) -> Spec {
    Spec { block: Some(block) }
}
