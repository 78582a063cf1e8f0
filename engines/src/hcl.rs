//! As much HCL as needed to tell whether one of Nomad's files configures a plugin: words, strings
//! and punctuation.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HclToken<'a> {
    Word(&'a str),
    /// The text between two quotes, with escapes as written.
    Text(&'a str),
    /// A brace, a bracket or an equals sign.
    Mark(char),
}

pub(crate) fn tokenize(mut text: &str) -> Vec<HclToken<'_>> {
    let mut tokens = Vec::new();
    loop {
        text = text.trim_start();
        let Some(first) = text.chars().next() else { return tokens };
        let (token, rest) = if first == '#' || text.starts_with("//") {
            (None, skip_to(text, "\n"))
        } else if text.starts_with("/*") {
            (None, skip_to(text, "*/"))
        } else if first == '"' {
            let (inside, rest) = read_quoted(text);
            (Some(HclToken::Text(inside)), rest)
        } else {
            let (token, rest) = read_word(text, first);
            (Some(token), rest)
        };
        tokens.extend(token);
        text = rest;
    }
}

fn skip_to<'a>(text: &'a str, end: &str) -> &'a str {
    text.split_once(end).map_or("", |(_, rest)| rest)
}

fn read_quoted(text: &str) -> (&str, &str) {
    let inside = text.get(1..).unwrap_or_default();
    let mut escaped = false;
    for (index, c) in inside.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => {
                let (inside, rest) = inside.split_at(index);
                return (inside, rest.get(1..).unwrap_or_default());
            }
            _ => {}
        }
    }
    (inside, "")
}

fn read_word(text: &str, first: char) -> (HclToken<'_>, &str) {
    let end = text.find(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | '-' | '.'));
    match end {
        Some(0) => {
            let rest = text.get(first.len_utf8()..).unwrap_or_default();
            (HclToken::Mark(first), rest)
        }
        end => {
            let (word, rest) = text.split_at(end.unwrap_or(text.len()));
            (HclToken::Word(word), rest)
        }
    }
}

pub(crate) fn find_block<'t, 'a>(
    tokens: &'t [HclToken<'a>],
    kind: &str,
    label: &str,
) -> Option<&'t [HclToken<'a>]> {
    let names = |token: &HclToken<'_>, name: &str| {
        *token == HclToken::Word(name) || *token == HclToken::Text(name)
    };
    let start = tokens.windows(3).position(|window| match window {
        [first, second, HclToken::Mark('{')] => names(first, kind) && names(second, label),
        _ => false,
    })?;
    let inside = tokens.get(start + 3..)?;
    let mut depth = 1_usize;
    let end = inside.iter().position(|token| {
        match token {
            HclToken::Mark('{') => depth += 1,
            HclToken::Mark('}') => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    inside.get(..end.unwrap_or(inside.len()))
}

pub(crate) fn list_holds(tokens: &[HclToken<'_>], name: &str, text: &str) -> bool {
    let start = tokens.windows(3).position(|window| {
        matches!(window, [HclToken::Word(word) | HclToken::Text(word), HclToken::Mark('=' | ':'), HclToken::Mark('[')] if *word == name)
    });
    start
        .and_then(|start| tokens.get(start + 3..))
        .unwrap_or_default()
        .iter()
        .take_while(|token| **token != HclToken::Mark(']'))
        .any(|token| *token == HclToken::Text(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_texts_are_told_from_code() {
        let text = "# plugin \"docker\" {\n// }\n/* a { */ b-c = \"d \\\" } # e\" ";
        assert_eq!(
            tokenize(text),
            [HclToken::Word("b-c"), HclToken::Mark('='), HclToken::Text("d \\\" } # e")]
        );
    }

    #[test]
    fn a_block_is_found_by_its_label_and_ends_at_its_brace() {
        let text = "plugin \"raw\" { x = 1 }\nplugin \"docker\" { config { y = 2 } }\nz = 3";
        let tokens = tokenize(text);
        let inside = find_block(&tokens, "plugin", "docker").unwrap();
        assert_eq!(inside.first(), Some(&HclToken::Word("config")));
        assert_eq!(inside.len(), 6);
        assert_eq!(find_block(&tokens, "plugin", "podman"), None);
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
