//! As much HCL as needed to tell whether one of Nomad's files configures a plugin: words, strings
//! and punctuation.

/// Splits a text into words, strings, and single other characters such as braces. A string keeps the quote before it,
/// and its escapes. Leaves out comments.
pub(crate) fn tokenize(mut text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    loop {
        text = text.trim_start();
        let Some(first) = text.chars().next() else { return tokens };
        let comment_end = match first {
            '#' => Some("\n"),
            '/' if text.starts_with("//") => Some("\n"),
            '/' if text.starts_with("/*") => Some("*/"),
            _ => None,
        };
        if let Some(end) = comment_end {
            text = text.split_once(end).map_or("", |(_, rest)| rest);
            continue;
        }
        let end = match first {
            '"' => find_closing_quote(text),
            _ => text.find(|c: char| !c.is_alphanumeric() && !"_-.".contains(c)),
        };
        let (token, rest) = text.split_at(end.unwrap_or(text.len()).max(first.len_utf8()));
        tokens.push(token);
        text = if first == '"' { rest.strip_prefix('"').unwrap_or(rest) } else { rest };
    }
}

/// The offset of the quote that ends the string at the beginning of a text.
fn find_closing_quote(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    let mut chars = text.char_indices().skip(1);
    let end = chars.find(|(_, c)| {
        let is_end = *c == '"' && !is_escaped;
        is_escaped = *c == '\\' && !is_escaped;
        is_end
    });
    end.map(|(index, _)| index)
}

/// Whether a token is that word or string.
fn is_name(token: &str, name: &str) -> bool {
    token.strip_prefix('"').unwrap_or(token) == name
}

pub(crate) fn find_block<'t, 'a>(
    tokens: &'t [&'a str],
    kind: &str,
    label: &str,
) -> Option<&'t [&'a str]> {
    let start = tokens.windows(3).position(|window| {
        is_name(window[0], kind) && is_name(window[1], label) && window[2] == "{"
    })?;
    let inside = tokens.get(start + 3..)?;
    let mut depth = 1_usize;
    let end = inside.iter().position(|token| {
        match *token {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    inside.get(..end.unwrap_or(inside.len()))
}

pub(crate) fn list_holds(tokens: &[&str], name: &str, text: &str) -> bool {
    let start = tokens.windows(3).position(|window| {
        is_name(window[0], name) && ["=", ":"].contains(&window[1]) && window[2] == "["
    });
    let list = start.and_then(|start| tokens.get(start + 3..)).unwrap_or_default();
    let mut members = list.iter().take_while(|token| **token != "]");
    members.any(|token| token.strip_prefix('"') == Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_texts_are_told_from_code() {
        let text = "# plugin \"docker\" {\n// }\n/* a { */ b-c = \"d \\\" } # e\" ";
        assert_eq!(tokenize(text), ["b-c", "=", "\"d \\\" } # e"]);
    }

    #[test]
    fn a_block_is_found_by_its_label_and_ends_at_its_brace() {
        let text = "plugin \"raw\" { x = 1 }\nplugin \"docker\" { config { y = 2 } }\nz = 3";
        let tokens = tokenize(text);
        let inside = find_block(&tokens, "plugin", "docker").unwrap();
        assert_eq!(inside.first(), Some(&"config"));
        assert_eq!(inside.len(), 6);
        assert_eq!(find_block(&tokens, "plugin", "podman"), None);
        assert_eq!(find_block(&tokenize("plugin \"docker\" \"{\" }"), "plugin", "docker"), None);
    }

    #[test]
    fn a_list_is_searched_up_to_its_end() {
        let tokens = tokenize("allow = [\"a\", \"b\"]\nother = [\"c\"]");
        assert!(list_holds(&tokens, "allow", "b"));
        assert!(!list_holds(&tokens, "allow", "c"));
        assert!(!list_holds(&tokens, "none", "a"));
    }

    #[test]
    fn what_does_not_end_is_read_to_the_end() {
        for text in ["\"", "/*", "plugin \"docker\" {", "a = [\"b\"", "é{", "\\"] {
            let tokens = tokenize(text);
            find_block(&tokens, "plugin", "docker");
            list_holds(&tokens, "a", "b");
        }
    }
}
