//! `man`: the manual pages, one a command, from the definition of the command line.

use std::path::Path;
use std::{fs, io};

use anyhow::Context;
use clap::builder::{PossibleValue, Str};
use clap::{Arg, ArgAction, Command, CommandFactory};
use clap_mangen::Man as Page;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use super::make_directory;
use crate::cli::{Cli, ManArgs};
use crate::exit::{self, CommandResult, ExitAnswer, FAILURE, NOT_TRIED};
use crate::files::FileList;

const SECTION: &str = "1";
/// The pages that are written by hand, in packaging/man/.
const HAND_WRITTEN_PAGES: [(&str, &str); 3] =
    [("onload-ctk.toml", "5"), ("onload-container-runtime", "8"), ("onload-hook", "8")];

pub fn run(args: &ManArgs) -> CommandResult {
    let directory = &args.directory;
    let failed = || format!("writing manual pages to {}", directory.display());
    make_directory(directory).with_context(failed)?;
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let root = with_words_in_a_line(root);
    write_pages(&root, &[], directory).with_context(failed)?;
    Ok(ExitAnswer::Yes)
}

/// Puts values that need no explanation into a line, where clap_mangen would give a line to each.
fn with_words_in_a_line(command: Command) -> Command {
    command.mut_args(list_plain_values).mut_subcommands(with_words_in_a_line)
}

fn list_plain_values(argument: Arg) -> Arg {
    let values = argument.get_possible_values();
    let is_plain = values.iter().all(|value| value.get_help().is_none());
    let is_listed = argument.get_action().takes_values() && !argument.is_hide_possible_values_set();
    if values.is_empty() || !is_plain || !is_listed {
        return argument;
    }
    let names: Vec<&str> = values.iter().map(PossibleValue::get_name).collect();
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    argument.long_help(format!("{help}. Known are {}", names.join(", "))).hide_possible_values(true)
}

fn write_pages(command: &Command, words: &[&str], directory: &Path) -> io::Result<()> {
    let path = directory.join(format!("{}.{SECTION}", name(command)));
    fs::write(path, render_page(command, &words.join(" "))?)?;
    for subcommand in visible_subcommands(command) {
        write_pages(subcommand, &[words, &[subcommand.get_name()]].concat(), directory)?;
    }
    Ok(())
}

fn visible_subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set())
}

fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// The text of a page. The sections from clap_mangen are followed by ours.
fn render_page(command: &Command, words: &str) -> io::Result<String> {
    let of_clap = Page::new(command.clone())
        .title(name(command).to_uppercase())
        // A page without a date: the argument has to be there all the same.
        .date("\"\"")
        .source(format!("onload-ctk {}", env!("CARGO_PKG_VERSION")))
        .manual("User commands");
    let mut page = ManPage::default();
    page.add(|out| of_clap.render_title(out))?;
    page.add(|out| of_clap.render_name_section(out))?;
    page.section("SYNOPSIS", |roff| write_synopsis(roff, command))?;
    page.add(|out| of_clap.render_description_section(out))?;
    page.add(|out| of_clap.render_options_section(out))?;
    if visible_subcommands(command).next().is_some() {
        page.add(|out| of_clap.render_subcommands_section(out))?;
    }
    page.section("EXIT STATUS", |roff| {
        exit_statuses(roff, words, command.has_subcommands());
    })?;
    if let Some(FileList(files)) = command.get() {
        page.section("FILES", |roff| {
            for (path, description) in files.iter().flat_map(|file| file.entries()) {
                write_entry(roff, italic(path), &description);
            }
        })?;
    }
    let examples = examples(command);
    if !examples.is_empty() {
        page.section("EXAMPLES", |roff| write_examples(roff, &examples))?;
    }
    page.section("SEE ALSO", |roff| write_see_also(roff, command))?;
    Ok(page.0)
}

#[derive(Default)]
struct ManPage(String);

impl ManPage {
    fn add(&mut self, render: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> io::Result<()> {
        let mut part = Vec::new();
        render(&mut part)?;
        let part = String::from_utf8_lossy(&part);
        // Removes the definitions at the start of each section, which a page needs once.
        let definitions = Roff::new().render();
        let part = if self.0.is_empty() {
            &part
        } else {
            part.strip_prefix(&definitions).unwrap_or(&part)
        };
        self.0.push_str(part);
        Ok(())
    }

    fn section(&mut self, title: &str, fill: impl FnOnce(&mut Roff)) -> io::Result<()> {
        let mut roff = Roff::new();
        roff.control("SH", [title]);
        fill(&mut roff);
        self.add(|out| roff.to_writer(out))
    }
}

/// Formats a list.
fn write_entry(roff: &mut Roff, term: Inline, description: &str) {
    roff.control("TP", []).text([term]).text([roman(description)]);
}

fn exit_statuses(roff: &mut Roff, words: &str, is_group: bool) {
    let no = exit::describe_negative_answer(words);
    for (status, meaning) in exit::STATUSES {
        let meaning = match (status, no) {
            (0, None) if !is_group => "Done.".to_owned(),
            (FAILURE, _) => format!(
                "{}: a line on standard error says why. Also where the command line cannot be \
                 parsed.",
                capitalize(meaning)
            ),
            (1, Some(when)) => format!("The answer is no: {when}."),
            // Such an answer this command does not give.
            (1, None) if !is_group => continue,
            (NOT_TRIED, _) if !["", "try"].contains(&words) => continue,
            _ => format!("{}.", capitalize(meaning)),
        };
        write_entry(roff, bold(status.to_string()), &meaning);
    }
}

fn capitalize(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|letter| letter.to_ascii_uppercase()).into_iter().chain(letters).collect()
}

fn examples(command: &Command) -> Vec<String> {
    const FIRST: &str = "Example: ";
    command
        .get_after_long_help()
        .map(ToString::to_string)
        .unwrap_or_default()
        .strip_prefix(FIRST)
        .unwrap_or_default()
        .lines()
        .map(|line| line.trim().to_owned())
        .collect()
}

fn write_examples(roff: &mut Roff, examples: &[String]) {
    for (index, example) in examples.iter().enumerate() {
        if index > 0 {
            roff.control("PP", []);
        }
        roff.control("EX", []).text([roman(example)]);
        roff.control("EE", []);
    }
}

fn write_see_also(roff: &mut Roff, command: &Command) {
    let own_name = name(command);
    let parent = own_name
        .rsplit_once('-')
        .map(|(parent, _)| parent)
        // The program's own name holds a hyphen.
        .filter(|parent| *parent != "onload");
    let program = parent.filter(|above| *above != "onload-ctk").map(|_| "onload-ctk");
    let children = visible_subcommands(command).map(name);
    let mut pages: Vec<(&str, &str)> =
        program.into_iter().chain(parent).chain(children).map(|page| (page, SECTION)).collect();
    pages.extend(HAND_WRITTEN_PAGES);
    let last = pages.len() - 1;
    let mut line = Vec::new();
    for (index, (page, section)) in pages.into_iter().enumerate() {
        let end = if index == last { "" } else { ", " };
        line.extend([bold(page), roman(format!("({section}){end}"))]);
    }
    roff.text(line);
}

/// Writes the synopsis with the values of options, which clap_mangen's leaves out: the options of the command, those of every command, then what it takes.
fn write_synopsis(roff: &mut Roff, command: &Command) {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let mut line = vec![bold(name)];
    let visible = || command.get_arguments().filter(|argument| !argument.is_hide_set());
    let (global, local): (Vec<_>, Vec<_>) = visible()
        .filter(|argument| !argument.is_positional())
        .partition(|argument| is_global(argument));
    for argument in local.into_iter().chain(global) {
        line.push(roman(" "));
        line.extend(bracket(argument, render_option(argument)));
    }
    for argument in visible().filter(|argument| argument.is_positional()) {
        line.push(roman(" "));
        line.extend(bracket(argument, vec![render_value(argument)]));
    }
    if command.is_subcommand_required_set() {
        line.extend([roman(" "), italic("COMMAND")]);
    } else if command.has_subcommands() {
        line.extend([roman(" ["), italic("COMMAND"), roman("]")]);
    }
    roff.text(line);
}

fn is_global(argument: &Arg) -> bool {
    let by_clap = matches!(
        argument.get_action(),
        ArgAction::Help | ArgAction::HelpLong | ArgAction::HelpShort | ArgAction::Version
    );
    argument.is_global_set() || by_clap
}

/// In brackets where it may be left out.
fn bracket(argument: &Arg, inlines: Vec<Inline>) -> Vec<Inline> {
    if argument.is_required_set() {
        return inlines;
    }
    [vec![roman("[")], inlines, vec![roman("]")]].concat()
}

fn render_option(argument: &Arg) -> Vec<Inline> {
    let mut inlines = Vec::new();
    if let Some(short) = argument.get_short() {
        inlines.extend([bold(format!("-{short}")), roman("|")]);
    }
    let long = argument.get_long().unwrap_or_default();
    inlines.push(bold(format!("--{long}")));
    if argument.get_action().takes_values() {
        inlines.extend([roman(" "), render_value(argument)]);
    }
    inlines
}

fn render_value(argument: &Arg) -> Inline {
    let names: Vec<&str> =
        argument.get_value_names().unwrap_or_default().iter().map(Str::as_str).collect();
    let several = match (argument.get_value_delimiter(), argument.get_action()) {
        (Some(delimiter), _) => format!("{delimiter}..."),
        (None, ArgAction::Append) => "...".to_owned(),
        (None, _) => String::new(),
    };
    italic(format!("{}{several}", names.join(" ")))
}
