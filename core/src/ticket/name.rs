//! How a ticket is named: in a variable, and for people.

use crate::lease::Token;
use crate::request::VARIABLE;

/// How a variable begins that names a ticket; 32 lower-case hexadecimal digits follow.
pub const WORD: &str = "ticket:";
/// Digits of a ticket that a message, a list or the name of a variable shows: enough to find it, and no ticket.
const SHOWN_DIGITS: usize = 8;

/// The beginning of a ticket, by which people know it.
pub fn short_id(id: &Token) -> &str {
    id.as_str().get(..SHOWN_DIGITS).unwrap_or_default()
}

/// The variable of a container's environment that names a ticket, with its value. Each ticket has one of its own:
/// an engine that reserves twice for one task merges both answers, and of one name only one value would stay.
pub fn to_variable(id: &Token) -> (String, String) {
    (format!("{VARIABLE}_{}", short_id(id).to_ascii_uppercase()), format!("{WORD}{}", id.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_has_a_variable_of_its_own_and_its_beginning_tells_it_apart() {
        let (one, other) = (Token::from([0xab; 16]), Token::from([0xcd; 16]));
        let (name, value) = to_variable(&one);
        assert_eq!(name, "ONLOAD_CTK_REQUEST_ABABABAB");
        assert_eq!(value, format!("ticket:{}", "ab".repeat(16)));
        assert_ne!(to_variable(&other).0, name);
        assert_eq!(short_id(&one), "abababab");
    }
}
