//! The names of tickets, in variables and for people.

use onload_core::request::VARIABLE;
use onload_core::token::Token;

/// The prefix of a variable's value that names a ticket. 32 lower-case hexadecimal digits follow.
pub const WORD: &str = "ticket:";
/// Digits of a ticket that messages, lists and names of variables show: enough to find the ticket,
/// too few to redeem it.
const SHOWN_DIGITS: usize = 8;

/// Returns the first digits of a ticket.
pub fn short_id(id: &Token) -> &str {
    id.as_str().get(..SHOWN_DIGITS).unwrap_or_default()
}

/// Returns the environment variable that names a ticket, and its value. The name of the variable
/// depends on the ticket: an engine that reserves twice for one task merges both answers, and two
/// values of the same variable would leave only one.
pub fn to_variable(id: &Token) -> (String, String) {
    (format!("{VARIABLE}_{}", short_id(id).to_ascii_uppercase()), format!("{WORD}{}", id.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ticket_has_its_own_variable() {
        let (one, other) = (Token::from([0xab; 16]), Token::from([0xcd; 16]));
        let (name, value) = to_variable(&one);
        assert_eq!(name, "ONLOAD_CTK_REQUEST_ABABABAB");
        assert_eq!(value, format!("ticket:{}", "ab".repeat(16)));
        assert_ne!(to_variable(&other).0, name);
        assert_eq!(short_id(&one), "abababab");
    }
}
