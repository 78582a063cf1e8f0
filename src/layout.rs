//! Text for people, at the width of their terminal: lines are wrapped between words, and no word is ever broken, so
//! that a path can be copied. Nothing is wrapped if the width is unknown.

use comfy_table::{ContentArrangement, Table, presets};
use textwrap::core::display_width;
use textwrap::{Options, WordSeparator, WordSplitter};

use crate::printer::{DIM, HEADING, escape_controls};

/// Minimum width of a text next to others; a narrower one gets separate lines.
const MIN_TEXT_WIDTH: usize = 32;
const MAX_WIDTH: usize = 56;
const LABEL: usize = 11;
const NO_BREAK: &str = "\u{a0}";
const INDENT: &str = "  ";
const FURTHER: &str = "    ";
const HANGING: &str = "      ";

/// A text with an indent before its first line, and another before those that go on with it.
pub(crate) fn format_paragraph(
    first: &str,
    rest: &str,
    text: &str,
    columns: Option<usize>,
) -> String {
    let Some(columns) = columns else { return format!("{first}{text}\n") };
    let options = Options::new(columns)
        .initial_indent(first)
        .subsequent_indent(rest)
        .break_words(false)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation);
    let room = columns.saturating_sub(display_width(rest));
    let lines = textwrap::fill(&keep_quotes_together(text, room), options);
    format!("{}\n", lines.replace(NO_BREAK, " "))
}

/// A text behind a label, below which it goes on where it is too long for a line.
pub(crate) fn format_labelled(label: &str, text: &str, columns: Option<usize>) -> String {
    let gap = " ".repeat(LABEL.saturating_sub(label.len()));
    let first = format!("{HEADING}{label}{HEADING:#}{gap}");
    format_paragraph(&first, &" ".repeat(LABEL), text, columns)
}

/// As [`format_labelled`], of a part of what has a label: its own is indented, and no heading.
pub(crate) fn format_part(label: &str, text: &str, columns: Option<usize>) -> String {
    let label = format!("{INDENT}{label}");
    format_paragraph(&format!("{label:LABEL$}"), &" ".repeat(LABEL), text, columns)
}

/// A text whose quotations stay on one line each, with a mark behind them, as far as one has room: a
/// command is copied whole.
fn keep_quotes_together(text: &str, room: usize) -> String {
    let mut parts: Vec<String> = Vec::new();
    for part in text.split('"') {
        match parts.last_mut().filter(|last| last.ends_with('\\')) {
            Some(last) => last.extend(["\"", part]),
            None => parts.push(part.to_owned()),
        }
    }
    let parts = parts.into_iter().enumerate().map(|(index, part)| {
        if index % 2 == 1 && display_width(&part) + "\"\",".len() <= room {
            part.replace(' ', NO_BREAK)
        } else {
            part
        }
    });
    parts.collect::<Vec<_>>().join("\"")
}

pub(crate) fn format_entry(head: &str, text: &str, columns: Option<usize>) -> String {
    let head = format_paragraph(INDENT, FURTHER, &to_one_line(head), columns);
    head + &format_paragraph(HANGING, HANGING, &to_one_line(text), columns)
}

/// A table whose last column holds texts. If there is too little room, each row is printed by [`format_entry`].
pub(crate) fn format_table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
    columns: Option<usize>,
) -> String {
    let rows: Vec<[String; N]> =
        rows.into_iter().map(|row| row.map(|cell| to_one_line(&cell))).collect();
    let Some(columns) = columns else { return align_columns(header, rows) };
    let room = columns.saturating_sub(width_before_last(header, &rows));
    let words = rows.iter().filter_map(|row| row.last()).flat_map(|text| text.split(' '));
    if room < words.map(display_width).max().unwrap_or(0).max(MIN_TEXT_WIDTH) {
        return format_entries(&rows, columns);
    }
    let wrapped = rows.into_iter().map(|mut row| {
        if let Some(text) = row.last_mut() {
            let lines = format_paragraph("", "", text, Some(room));
            lines.trim_end().clone_into(text);
        }
        row
    });
    align_columns(header, wrapped)
}

/// Prints two texts side by side, or one below the other if the line is too short.
pub(crate) fn format_pairs(pairs: &[(String, String)], columns: Option<usize>) -> String {
    let width =
        pairs.iter().map(|(label, _)| display_width(label)).max().unwrap_or(0).min(MAX_WIDTH);
    let lines = pairs.iter().map(|(label, text)| {
        let (label, text) = (to_one_line(label), to_one_line(text));
        if text.is_empty() {
            return format_paragraph(INDENT, HANGING, &label, columns);
        }
        let gap = width.saturating_sub(display_width(&label));
        let line = format!("{INDENT}{label}{:gap$}{INDENT}{DIM}{text}{DIM:#}\n", "");
        if columns.is_none_or(|columns| display_width(line.trim_end()) <= columns) {
            return line;
        }
        let label = format_paragraph(INDENT, FURTHER, &label, columns);
        label + &format_paragraph(HANGING, HANGING, &format!("{DIM}{text}{DIM:#}"), columns)
    });
    lines.collect()
}

/// A text in which nothing steers the terminal or ends a line.
pub(crate) fn to_one_line(text: &str) -> String {
    escape_controls(text).replace('\n', "\\n")
}

fn width_before_last<const N: usize>(header: [&str; N], rows: &[[String; N]]) -> usize {
    let mut widths = header.map(display_width);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = display_width(cell).max(*width);
        }
    }
    let before_last = widths.iter().take(N.saturating_sub(1));
    INDENT.len() + before_last.map(|width| width + INDENT.len()).sum::<usize>()
}

fn align_columns<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    for row in rows {
        table.add_row(row);
    }
    // A cell has one space on each side.
    table.lines().map(|line| format!(" {}\n", line.trim_end())).collect()
}

/// The rows without what is not known of them or was just said.
fn format_entries<const N: usize>(rows: &[[String; N]], columns: usize) -> String {
    rows.iter()
        .filter_map(|row| row.split_last())
        .map(|(text, names)| {
            let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
            names.retain(|name| *name != "-");
            names.dedup();
            format_entry(&names.join(INDENT), text, Some(columns))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages";

    #[test]
    fn lines_are_wrapped_between_words_with_a_hanging_indent() {
        assert_eq!(
            format_paragraph("- ", "    ", "one two-three four five", Some(14)),
            "- one\n    two-three\n    four five\n"
        );
    }

    #[test]
    fn a_part_stands_below_what_it_is_part_of() {
        let whole = format_labelled("Onload", "offered now", Some(18))
            + &format_part("driver", "9.1 of it", Some(18));
        assert_eq!(
            anstream::adapter::strip_str(&whole).to_string(),
            "Onload     offered\n           now\n  driver   9.1 of\n           it\n"
        );
    }

    #[test]
    fn a_command_stays_on_one_line_where_one_has_room_for_it() {
        let text = "bound to igbvf; run \"set-override A vfio-pci\"";
        assert_eq!(
            format_paragraph("", "", text, Some(26)),
            "bound to igbvf; run\n\"set-override A vfio-pci\"\n"
        );
        assert_eq!(
            format_paragraph("", "", text, Some(24)),
            "bound to igbvf; run\n\"set-override A\nvfio-pci\"\n"
        );
        // A quotation may hold quotation marks.
        let text = r#"means "if [ -z \"$X\" ]; then"; set"#;
        let lines = [r#"means "if [ -z"#, r#"\"$X\" ];"#, r#"then"; set"#, ""];
        assert_eq!(format_paragraph("", "", text, Some(15)), lines.join("\n"));
        let lines = ["means", r#""if [ -z \"$X\" ]; then";"#, "set", ""];
        assert_eq!(format_paragraph("", "", text, Some(26)), lines.join("\n"));
    }

    #[test]
    fn a_word_that_is_longer_than_a_line_stays_whole() {
        let text = format!("write how many to {PATH}");
        assert_eq!(
            format_entry("hugepages  1Gi", &text, Some(24)),
            format!("  hugepages  1Gi\n      write how many to\n      {PATH}\n")
        );
    }

    #[test]
    fn without_a_width_nothing_is_wrapped() {
        let text = "word ".repeat(100);
        let shown = format_paragraph("  ", "    ", text.trim_end(), None);
        assert_eq!(shown.lines().count(), 1);
        let rows = [["nic".to_owned(), text]];
        assert_eq!(format_table(["CLASS", "DETAILS"], rows, None).lines().count(), 2);
    }

    #[test]
    fn the_last_column_wraps_below_itself_and_the_others_stay_as_they_are() {
        let text = "group 14, vfio-pci, VF of 0000:41:00.0, not viable".to_owned();
        let rows = [["vfio".to_owned(), "0000:41:10.0".to_owned(), text]];
        let lines = [
            "  CLASS  NAME          DETAILS",
            "  vfio   0000:41:10.0  group 14, vfio-pci, VF of",
            "                       0000:41:00.0, not viable",
            "",
        ];
        let shown = format_table(["CLASS", "NAME", "DETAILS"], rows, Some(60));
        assert_eq!(shown, lines.join("\n"));
    }

    #[test]
    fn a_table_that_leaves_too_little_room_becomes_entries() {
        let row = |cells: [&str; 4]| cells.map(str::to_owned);
        let rows = [
            row(["hugepages", "2Mi", "-", "32 of 32 pages free, mounted at /dev/hugepages"]),
            row(["vfio", "0000:41:10.0", "0000:41:10.0", "group 14"]),
        ];
        let header = ["CLASS", "NAME", "PCI ADDRESS", "DETAILS"];
        assert_eq!(
            format_table(header, rows, Some(40)),
            "  hugepages  2Mi\n      32 of 32 pages free, mounted at\n      \
             /dev/hugepages\n  vfio  0000:41:10.0\n      group 14\n"
        );
    }

    #[test]
    fn a_table_whose_texts_have_a_word_that_does_not_fit_becomes_entries() {
        let rows = [["1Gi".to_owned(), format!("write to {PATH}")]];
        assert_eq!(
            format_table(["NAME", "REASON"], rows, Some(64)),
            format!("  1Gi\n      write to\n      {PATH}\n")
        );
    }

    #[test]
    fn a_pair_stands_side_by_side_where_it_fits() {
        let pair = |what: &str, how: &str| (what.to_owned(), how.to_owned());
        let lines = [pair("/dev/onload", "rw"), pair("/dev/vfio/vfio", "rw from /x")];
        let plain =
            |columns| anstream::adapter::strip_str(&format_pairs(&lines, columns)).to_string();
        let beside = "  /dev/onload     rw\n  /dev/vfio/vfio  rw from /x\n";
        assert_eq!(plain(None), beside);
        assert_eq!(plain(Some(28)), beside);
        assert_eq!(plain(Some(27)), "  /dev/onload     rw\n  /dev/vfio/vfio\n      rw from /x\n");
    }

    #[test]
    fn names_that_go_on_stand_before_what_there_is_to_say_of_them() {
        assert_eq!(
            format_entry("nic  ens1, ens2", "switched off", Some(13)),
            "  nic  ens1,\n    ens2\n      switched\n      off\n"
        );
    }

    #[test]
    fn no_name_steers_the_terminal_or_ends_a_line() {
        let shown = format_entry("nic  a\nb", "\u{1b}[31m", Some(40));
        assert_eq!(shown, "  nic  a\\nb\n      \\u{1b}[31m\n");
    }
}
