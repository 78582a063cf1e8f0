//! The schema by which Nomad checks the `config` block: it refuses wrong types and unknown names.

use super::table::TABLE;
use crate::wire::hclspec::Spec;

/// The schema of [`TABLE`].
#[must_use]
pub fn schema() -> Spec {
    let attributes = TABLE.iter().map(|setting| {
        let attribute = Spec::attribute(setting.name, setting.kind.expression());
        let attribute = match setting.default {
            Some(literal) => attribute.or(literal),
            None => attribute,
        };
        (setting.name.to_owned(), attribute)
    });
    Spec::object(attributes.collect())
}
